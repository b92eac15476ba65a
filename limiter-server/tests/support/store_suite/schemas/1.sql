-- $ID: a number that the database assigns. $NAME, $SHORT: names, compared by bytes. $TEXT: long text.
CREATE TABLE IF NOT EXISTS setting (name $SHORT NOT NULL, content $TEXT NOT NULL, PRIMARY KEY (name));

CREATE TABLE IF NOT EXISTS document (
    namespace $SHORT NOT NULL, kind $SHORT NOT NULL, name $NAME NOT NULL,
    revision BIGINT NOT NULL, published BIGINT NOT NULL, state $SHORT NOT NULL, deleted BIGINT NOT NULL,
    managed_by $NAME NOT NULL, apps $TEXT, body $TEXT NOT NULL, note $TEXT,
    created_by $NAME NOT NULL, created_at BIGINT NOT NULL, updated_by $NAME NOT NULL, updated_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, kind, name));

CREATE TABLE IF NOT EXISTS revision (
    namespace $SHORT NOT NULL, kind $SHORT NOT NULL, name $NAME NOT NULL, number BIGINT NOT NULL,
    deleted BIGINT NOT NULL, state $SHORT NOT NULL, origin $SHORT NOT NULL, author $NAME NOT NULL,
    reason $TEXT, body $TEXT NOT NULL, created_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, kind, name, number));

CREATE TABLE IF NOT EXISTS outbox (
    id $ID, namespace $SHORT NOT NULL, kind $SHORT NOT NULL, name $NAME NOT NULL,
    revision BIGINT NOT NULL, created_at BIGINT NOT NULL);

CREATE TABLE IF NOT EXISTS publication (
    namespace $SHORT NOT NULL, registry_revision BIGINT NOT NULL, confirmed_at BIGINT NOT NULL,
    PRIMARY KEY (namespace));

CREATE TABLE IF NOT EXISTS alert (
    id $ID, namespace $SHORT NOT NULL, kind $SHORT NOT NULL, detail $TEXT NOT NULL,
    created_at BIGINT NOT NULL, cleared_by $NAME, cleared_at BIGINT);

CREATE TABLE IF NOT EXISTS audit (
    id $ID, namespace $SHORT NOT NULL, created_at BIGINT NOT NULL, actor $NAME NOT NULL, action $SHORT NOT NULL,
    object $NAME NOT NULL, apps $TEXT, detail $TEXT);

CREATE TABLE IF NOT EXISTS account (
    name $NAME NOT NULL, password $TEXT, is_admin BIGINT NOT NULL, disabled BIGINT NOT NULL,
    created_by $NAME NOT NULL, created_at BIGINT NOT NULL, PRIMARY KEY (name));

CREATE TABLE IF NOT EXISTS signin (
    hash $SHORT NOT NULL, account $NAME NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL,
    PRIMARY KEY (hash));

CREATE TABLE IF NOT EXISTS setup_link (hash $SHORT NOT NULL, expires_at BIGINT NOT NULL, PRIMARY KEY (hash));

CREATE TABLE IF NOT EXISTS token (
    id $SHORT NOT NULL, hash $SHORT NOT NULL, label $NAME NOT NULL, namespace $SHORT NOT NULL, scopes $TEXT NOT NULL,
    created_by $NAME NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, revoked_at BIGINT,
    suspended BIGINT NOT NULL, used_day BIGINT, PRIMARY KEY (id), UNIQUE (hash));

CREATE TABLE IF NOT EXISTS app (
    namespace $SHORT NOT NULL, name $NAME NOT NULL, bounds $TEXT, created_by $NAME NOT NULL,
    created_at BIGINT NOT NULL, PRIMARY KEY (namespace, name));

CREATE TABLE IF NOT EXISTS role_grant (
    namespace $SHORT NOT NULL, subject_kind $SHORT NOT NULL, subject $NAME NOT NULL, app $NAME NOT NULL,
    role $SHORT NOT NULL, created_by $NAME NOT NULL, created_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, subject_kind, subject, app));

CREATE TABLE IF NOT EXISTS proposal (
    id $SHORT NOT NULL, namespace $SHORT NOT NULL, name $NAME NOT NULL, base BIGINT NOT NULL, body $TEXT NOT NULL,
    apps $TEXT, reason $TEXT, author $NAME NOT NULL, created_at BIGINT NOT NULL, state $SHORT NOT NULL,
    decided_by $NAME, decided_at BIGINT, PRIMARY KEY (id));

CREATE TABLE IF NOT EXISTS node (
    name $NAME NOT NULL, instance $SHORT NOT NULL, role $SHORT NOT NULL, version $SHORT NOT NULL,
    shares_limits BIGINT NOT NULL, seen BIGINT NOT NULL, PRIMARY KEY (instance));
