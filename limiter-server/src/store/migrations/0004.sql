-- Keys that a policy denied most in one hour. $SHORT: sample identifies the source, the app and the key.
CREATE TABLE IF NOT EXISTS denial_sample (
    namespace $SHORT NOT NULL, policy $NAME NOT NULL, start_at BIGINT NOT NULL, sample $SHORT NOT NULL,
    node $NAME NOT NULL, app $NAME, denied_key $NAME NOT NULL, rule_text $TEXT, registry_revision BIGINT,
    origin $SHORT, first_at BIGINT NOT NULL, last_at BIGINT NOT NULL, overcount BIGINT NOT NULL, denied BIGINT NOT NULL,
    PRIMARY KEY (namespace, start_at, policy, sample));
