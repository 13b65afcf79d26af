//! How clients spell the subject `s`, and decoys beside it.

use serde_json::{Value, json};

/// A whole header line, or a query.
pub type Spelling = &'static [u8];

/// Where a framework and a key take their value from.
pub struct Source {
    /// Also the field of the framework's answer, and the path.
    pub name: &'static str,
    /// The first is the plain one.
    pub spellings: &'static [Spelling],
}

pub const SOURCES: [Source; 4] = [
    Source {
        name: "cookie",
        spellings: COOKIES,
    },
    Source {
        name: "header",
        spellings: HEADERS,
    },
    Source {
        name: "query",
        spellings: QUERIES,
    },
    Source {
        name: "token",
        spellings: TOKENS,
    },
];

impl Source {
    pub fn component(&self) -> Value {
        match self.name {
            "cookie" => json!({ "cookie": "session" }),
            "header" => json!({ "header": "x-api-key" }),
            "query" => json!({ "query": "account_id" }),
            _ => json!({ "header": "authorization" }),
        }
    }

    pub fn request(&self, spelling: Spelling, cost: u64) -> Vec<u8> {
        let (query, header): (Spelling, Spelling) = match self.name {
            "query" => (spelling, b"x-other: 1"),
            _ => (b"a=b", spelling),
        };
        let name = self.name.as_bytes();
        let end =
            format!(" HTTP/1.1\r\nhost: a.example\r\nconnection: close\r\nx-cost: {cost}\r\n");
        [
            b"GET /",
            name,
            b"?",
            query,
            end.as_bytes(),
            header,
            b"\r\n\r\n",
        ]
        .concat()
    }
}

const COOKIES: &[Spelling] = &[
    b"cookie: session=s",
    b"cookie: session=s\xa0",
    b"cookie: session=s\xa0\xa0",
    b"cookie: session=s\x85",
    b"cookie: session=s\xa0\x85 \xa0",
    b"cookie: session=s\xc2\xa0",
    b"cookie: session=s\xc2\x85",
    b"cookie: session=s\xe1\x9a\x80",
    b"cookie: session=s\xe2\x80\x83",
    b"cookie: session=s\xe2\x80\x85",
    b"cookie: session=s\xe2\x80\xa8",
    b"cookie: session=s\xe2\x81\x9f",
    b"cookie: session=s\xe3\x80\x80",
    b"cookie: session=s\xef\xbb\xbf",
    b"cookie: session=\xa0s",
    b"cookie: session=\xc2\xa0s",
    b"cookie: session=\xe3\x80\x80s",
    b"cookie: session\xa0=s",
    b"cookie: session\x85=s",
    b"cookie: session\xc2\xa0=s",
    b"cookie: session\xe2\x80\x83 =s",
    b"cookie: \xa0session=s",
    b"cookie: \xc2\xa0session=s",
    b"cookie: \xa0 session \xa0=\xa0 s \xa0",
    b"cookie: a=b;\xa0session=s; c=d",
    b"cookie: session=\"s\"",
    b"cookie: session=\"s\"\xa0",
    b"cookie: session=\"\\163\"",
    b"cookie: session=%73",
    b"cookie: session=%2573",
    b"cookie: sess%69on=s",
    b"cookie: session%00x=s",
    b"cookie: SESSION=s",
    b"cookie: session=s; session\xa0=s",
    b"cookie: session=d; session\xa0=s",
    b"cookie: session=s; session\xa0=d",
    b"cookie: session=d; session\xc2\xa0=s",
    b"cookie: session=d; session%00=s",
    b"cookie: session=d\r\ncookie: session=s",
];

const HEADERS: &[Spelling] = &[
    b"x-api-key: s",
    b"X-API-KEY:s \t",
    b"x-api-key: s\xa0",
    b"x-api-key: s\xa0\xa0",
    b"x-api-key: s\x85",
    b"x-api-key: s \xa0 \x85",
    b"x-api-key: \xa0s",
    b"x-api-key: \x85 s",
    b"x-api-key: s\xc2\xa0",
    b"x-api-key: s\xe2\x80\x83",
    b"x-api-key: s\xe3\x80\x80",
    b"x-api-key: s\xef\xbb\xbf",
    b"x-api-key: \xef\xbb\xbfs",
    b"x-api-key: s\r\nx-api-key: s\xa0",
    b"x_api_key: s",
    b"x.api.key: s",
    b"x-api-key: d\r\nx_api_key: s",
    b"x-api-key: d\r\nx.api.key: s",
    b"x-api-key: d\r\nx-api-key: s",
];

const QUERIES: &[Spelling] = &[
    b"account_id=s",
    b"account_id=%73",
    b"%61ccount_id=s",
    b"account_id=s&account_id=s",
    b"+account_id=s",
    b"%20account_id=s",
    b"%20+account_id=s",
    b"account_id%00=s",
    b"account_id%00x=s",
    b"account.id=s",
    b"account+id=s",
    b"account%20id=s",
    b"account[id=s",
    b"account%5Bid=s",
    b"Account_ID=s",
    b"[account_id]=s",
    b"%5Baccount_id%5D=s",
    b"account_id=d&account_id=s",
    b"account_id=d&%20account_id=s",
    b"account_id=d&+account_id=s",
    b"account_id=d&account_id%00=s",
    b"account_id=d&account.id=s",
    b"account_id=d&account%5Bid=s",
    b"account_id=d;account_id=s",
];

const TOKENS: &[Spelling] = &[
    b"authorization: Bearer s",
    b"authorization: bearer s",
    b"authorization: BEARER   s",
    b"authorization: Bearer\ts",
    b"authorization: Bearer s\xa0",
    b"authorization: Bearer s\xa0\xa0",
    b"authorization: Bearer s\x85",
    b"authorization: Bearer \xa0s",
    b"authorization: Bearer\xa0s",
    b"authorization: Bearer\x85 s",
    b"authorization: Bearer s\xc2\xa0",
    b"authorization: Bearer \xc2\xa0s",
    b"authorization: Bearer s\xe2\x80\x83",
    b"authorization: Bearer s\xef\xbb\xbf",
    b"authorization: \xa0Bearer s",
];
