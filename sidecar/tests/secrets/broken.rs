//! Policies that contain a secret, broken in more than a hundred ways.

/// The secret that no output may contain. Letters only, so that it is valid wherever a name is.
pub const SECRET: &str = "HunterTwosPassword";

/// Nothing listens on these addresses, so the sidecar's store is down.
pub const STORES: [&str; 4] = [
    "redis://:HunterTwosPassword@127.0.0.1:1",
    "redis://app:HunterTwosPassword@127.0.0.1:1/2",
    "redis+cluster://:HunterTwosPassword@127.0.0.1:1",
    "redis+unix:///nowhere/redis.sock?pass=HunterTwosPassword",
];

/// Every field is within two lines of `store`, which is the range that the parser used to quote.
pub const GOOD: &str = "denial_ttl: 1s
store: STORE
limits: { per-key: { algorithm: sliding_log, windows: [{ quota: 10, per: 1s }] } }
store_timeout: 20ms
";

/// What to replace in `GOOD`, its replacement (`STORE` becomes the URL), and what the message must contain.
pub type Broken = (&'static str, &'static str, &'static [&'static str]);

#[rustfmt::skip] // A table: a line each.
pub const BROKEN: &[Broken] = &[
    // Misspelt fields, above and below `store`.
    ("limits:", "limts:", &["line 3", "`limts`", "`limits`"]),
    ("store:", "stroe:", &["line 2", "`stroe`", "`store`"]),
    ("denial_ttl:", "denail_ttl:", &["line 1", "`denial_ttl`"]),
    ("store_timeout:", "stor_timeout:", &["line 4", "`store_timeout`"]),
    ("quota:", "qouta:", &["line 3", "`qouta`", "`quota`"]),
    ("algorithm:", "algorythm:", &["line 3", "`algorithm`"]),
    ("store_timeout: 20ms", "password: HunterTwosPassword", &["line 4", "`store`"]),
    // Fields that are missing or given twice.
    ("limits:", "store_timeout:", &["line"]),
    (", per: 1s", "", &["line 3", "`per`"]),
    ("store_timeout: 20ms", "store: STORE", &["line 4", "`store`", "twice"]),
    ("store_timeout: 20ms", "STORE: STORE", &["line 4"]),
    ("store: STORE", "STORE: 1\nSTORE: 2", &["line"]),
    ("limits: { per-key", "limits: { 'STORE': { algorithm: sliding_log, windows: [] }, 'STORE': {}, per-key", &["line 3"]),
    // Values of the wrong type, in every field; and the URL in every field.
    ("store: STORE", "store: [STORE]", &["line 2", "`store`", "mapping"]),
    ("store: STORE", "store: { ulr: 'STORE' }", &["line 2", "`url`"]),
    ("store: STORE", "store:\n  url: [STORE]", &["line 3", "`url`", "list"]),
    ("store: STORE", "store:\n  - STORE", &["line", "`store`", "mapping"]),
    ("quota: 10", "quota: -1", &["line 3", "`quota`", "-1", "whole number"]),
    ("quota: 10", "quota: 1.5", &["line 3", "`quota`", "1.5"]),
    ("quota: 10", "quota: ten", &["line 3", "`quota`", "`ten`", "whole number"]),
    ("quota: 10", "quota: [10]", &["line 3", "`quota`", "list"]),
    ("quota: 10", "quota: 'STORE'", &["line 3", "`quota`", "***", "give"]),
    ("quota: 10", "quota: 10, burst: 'STORE'", &["line 3", "`burst`", "***", "give"]),
    ("per: 1s", "per: 'STORE'", &["line 3", "`per-key`", "window 1", "`per`"]),
    ("per: 1s", "per: { a: 'STORE' }", &["line 3", "`per`", "mapping"]),
    ("sliding_log, windows: [{ quota: 10", "sliding_window, windows: [{ quota: 10, precision: 'STORE'", &["line 3", "`precision`"]),
    ("denial_ttl: 1s", "denial_ttl: STORE", &["line 1", "`denial_ttl`"]),
    ("denial_ttl: 1s", "denial_ttl: [STORE]", &["line 1", "`denial_ttl`", "list"]),
    ("store_timeout: 20ms", "store_timeout: STORE", &["line 4", "`store_timeout`"]),
    ("store_timeout: 20ms", "store_timeout: { a: 1 }", &["line 4", "`store_timeout`"]),
    ("algorithm: sliding_log", "algorithm: sliding-log", &["line 3", "`sliding-log`", "`sliding_log`"]),
    ("algorithm: sliding_log", "algorithm: 'STORE'", &["line 3", "`algorithm`", "`token_bucket`"]),
    ("algorithm: sliding_log", "algorithm: { 'STORE': 1 }", &["line 3", "`algorithm`"]),
    ("[{ quota: 10, per: 1s }]", "'STORE'", &["line 3", "`windows`", "***", "give"]),
    ("[{ quota: 10, per: 1s }]", "['STORE']", &["line 3", "`windows`", "***", "give"]),
    ("per-key: {", "per-key: 'STORE', other: {", &["line 3", "mapping"]),
    ("per-key: {", "'STORE': {", &["line 3", "characters"]),
    ("limits: {", "limits: 'STORE'\nx: {", &["line 3", "`limits`", "***", "give"]),
    ("limits: {", "limits: ['STORE']\nx: {", &["line 3", "`limits`", "list"]),
    ("denial_ttl: 1s", "STORE: STORE", &["line 1"]),
    ("denial_ttl: 1s", "'STORE':", &["line 1"]),
    ("denial_ttl: 1s", "? STORE", &["line 1"]),
    ("denial_ttl: 1s", "? [STORE]\n: 1", &["line 1"]),
    ("denial_ttl: 1s", "<<: STORE", &["line 1"]),
    // Broken YAML.
    ("store: STORE", "\tstore: STORE", &["line"]),
    ("store: STORE", "store:\tSTORE\n\tx", &["line"]),
    ("store: STORE", " store: STORE", &["line"]),
    ("store: STORE", "store: \"STORE", &["line"]),
    ("store: STORE", "store: 'STORE", &["line"]),
    ("store: STORE", "store: \"STORE\\q\"", &["line 2"]),
    ("store: STORE", "store: \"STORE\" HunterTwosPassword", &["line 2"]),
    ("store: STORE", "store: [STORE", &["line"]),
    ("store: STORE", "store: {STORE", &["line"]),
    ("store: STORE", "store: redis://:HunterTwosPassword@127.0.0.1:1]", &["`store`"]),
    ("store: STORE", "store: redis://:a: HunterTwosPassword@h", &["line 2"]),
    ("store: STORE", "store: { redis://:a,HunterTwosPassword,b@h", &["line"]),
    ("store: STORE", "store: @STORE", &["line 2"]),
    ("store: STORE", "store: %STORE", &["line 2"]),
    ("store: STORE", "store: `STORE`", &["line 2"]),
    ("store: STORE", "store: *HunterTwosPassword", &["line 2"]),
    ("store: STORE", "store: *STORE", &["line 2"]),
    ("store: STORE", "store: !HunterTwosPassword [STORE]", &["line 2"]),
    ("store: STORE", "store: !<STORE> {}", &["line 2"]),
    ("store: STORE", "store: !a!STORE x", &["line 2"]),
    ("store: STORE", "store: !!int STORE", &["line 2"]),
    ("denial_ttl: 1s", "%HunterTwosPassword STORE", &["line"]),
    ("denial_ttl: 1s", "%TAG !a! STORE", &["line"]),
    ("denial_ttl: 1s", "--- STORE", &["line"]),
    ("denial_ttl: 1s", "- STORE", &["line"]),
    ("store_timeout: 20ms", "---\nSTORE", &["line"]),
    ("store_timeout: 20ms", "STORE", &["line"]),
    ("store: STORE", "store:STORE", &["line"]),
    ("store: STORE", "store: STORE\0", &["line"]),
    // An anchor on the store and its alias in another field.
    ("store: STORE\n", "store: &HunterTwosPassword STORE\nlimts: *HunterTwosPassword\n", &["line 3", "`limits`"]),
    ("store: STORE\nlimits: { per-key: {", "store: &s STORE\nlimits: { per-key: *s, x: {", &["line 3"]),
    ("store_timeout: 20ms", "store_timeout: &s { a: STORE }\nx: *s", &["line"]),
    // The URL over several lines, whole and in part.
    ("store: STORE\nlimits:", "store: |\n  memory\n  STORE\nlimts:", &["`limits`"]),
    ("store: STORE", "store: >\n  x\n  STORE", &["`store`"]),
    ("store: STORE", "store:\n  rediss//:\n  HunterTwosPassword@h", &["line 4", "not YAML"]),
    ("store: STORE", "store: |\nSTORE", &["line"]),
    ("store: STORE", "store: >\n    a\n  STORE\n x", &["line"]),
    // Invalid URLs.
    ("store: STORE", "store: rediss//:HunterTwosPassword@h", &["line 2", "`store`", "redis://"]),
    ("store: STORE", "store: http://:HunterTwosPassword@h", &["line 2", "`store`", "redis://"]),
    ("store: STORE", "store: :HunterTwosPassword@h:6379", &["line 2", "`store`", "redis://"]),
    ("store: STORE", "store: HunterTwosPassword", &["line 2", "`store`", "redis://"]),
    ("store: STORE", "store: redis://:HunterTwosPassword@", &["`store`"]),
    ("store: STORE", "store: redis://:HunterTwosPassword@h:port", &["`store`"]),
    ("store: STORE", "store: redis://:HunterTwosPassword@h:99999", &["`store`"]),
    ("store: STORE", "store: redis://:HunterTwosPassword@h/db", &["`store`"]),
    ("store: STORE", "store: redis://:HunterTwosPassword/x@h", &["`store`"]),
    ("store: STORE", "store: redis://:HunterTwosPassword#x@h", &["`store`"]),
    ("store: STORE", "store: redis://:%FFHunterTwosPassword@h", &["`store`"]),
    ("store: STORE", "store: redis://:x@[HunterTwosPassword]", &["`store`"]),
    ("store: STORE", "store: redis://h?protocol=resp3HunterTwosPassword", &["`store`"]),
    ("store: STORE", "store: redis+unix:///s?protocol=3pass=HunterTwosPassword", &["`store`"]),
    ("store: STORE", "store: redis+unix:///s?db=HunterTwosPassword", &["`store`"]),
    ("store: STORE", "store: redis+cluster://:Hunter,HunterTwosPassword@h,", &["`store`"]),
    ("store: STORE", "store: redis+sentinel://:HunterTwosPassword@h", &["`store`", "name"]),
    ("store: STORE", "store: rediss+sentinel://HunterTwosPassword@h/x", &["`store`"]),
    ("store: STORE", "store: redis+sentinel://:x@h/n/HunterTwosPassword", &["`store`"]),
    ("store: STORE", "store: { url: 'rediss//:HunterTwosPassword@h' }", &["line 2", "`url` of `store`"]),
    ("store: STORE", "store: { url: 'rediss://h', tls: { server_name: 'Hunter TwosPassword HunterTwosPassword' } }", &["line 2", "`tls` of `store`"]),
    ("store: STORE", "store: { url: 'redis://:HunterTwosPassword@h', tls: { ca: a } }", &["line 2", "`tls` of `store`", "rediss"]),
    ("store: STORE", "store: { url: 'redis://:HunterTwosPassword@h', password_file: p }", &["line 2", "`password_file` of `store`", "once"]),
    ("store: STORE", "store: { url: 'redis://h', username_file: HunterTwosPassword }", &["line 2", "`username_file` of `store`"]),
    ("store: STORE", "store: { url: 'redis://h', key_prefix: '{HunterTwosPassword}' }", &["line 2", "`key_prefix` of `store`", "braces"]),
    ("store: STORE", "store: { url: 'redis://h', connections: 17 }", &["line 2", "`connections` of `store`", "16"]),
    ("store: STORE", "store: { url: 'redis://h', connections: 'STORE' }", &["line 2", "`connections`", "16"]),
    ("store: STORE", "store: { url: 'redis://h', sentinel: { password_file: HunterTwosPassword } }", &["line 2", "`sentinel` of `store`"]),
    ("store: STORE", "store: { url: 'redis://h', tls: 'STORE' }", &["line 2", "`tls`", "`server_name`"]),
    ("store: STORE", "store: { url: 'rediss://h', tls: { cert: HunterTwosPassword } }", &["line 2", "`certificate`"]),
    ("store: STORE", "store: { url: 'rediss://h', tls: { key: HunterTwosPassword } }", &["line 2", "`tls` of `store`", "`certificate`"]),
    ("store: STORE", "store: { password: HunterTwosPassword, url: 'redis://h' }", &["line 2", "`password_file`"]),
    ("store: STORE", "store: redis+cluster://:HunterTwosPassword@h,:other@h", &["`store`"]),
];
