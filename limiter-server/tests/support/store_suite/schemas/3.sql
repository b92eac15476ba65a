-- Decisions of the library processes of an app in one minute or one hour. $SHORT: 'minute' or 'hour'.
CREATE TABLE IF NOT EXISTS library_usage (
    namespace $SHORT NOT NULL, policy $NAME NOT NULL, app $NAME NOT NULL, span $SHORT NOT NULL, start_at BIGINT NOT NULL,
    allowed BIGINT NOT NULL, denied BIGINT NOT NULL, would_deny BIGINT NOT NULL, failed BIGINT NOT NULL,
    PRIMARY KEY (namespace, span, start_at, policy, app));
