//! Small models of upstreams, each written independently of `path.rs` after the source that it names.
//!
//! A model returns what the server uses to choose the resource to serve; `None` is a request that the server refuses or
//! redirects.

/// A server: its name, and how it parses a path.
pub struct Model {
    pub name: &'static str,
    /// The matching `upstream_paths`; empty if there is none.
    pub named: &'static str,
    pub serve: fn(&str) -> Option<Served>,
}

/// The segments of the served path. In most servers they come from splitting a text, so that none contains a `/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Served(pub Vec<Vec<u8>>);

impl Served {
    pub fn of_text(text: &[u8]) -> Self {
        let text = text.strip_prefix(b"/").unwrap_or(text);
        let segments = text.split(|byte| *byte == b'/');
        Self(segments.map(<[u8]>::to_vec).collect())
    }

    pub fn has_inner_slash(&self) -> bool {
        self.0.iter().any(|segment| segment.contains(&b'/'))
    }

    pub fn text(&self) -> Vec<u8> {
        let segments = self.0.iter();
        segments
            .flat_map(|segment| [b"/", &segment[..]].concat())
            .collect()
    }
}

const fn model(
    name: &'static str,
    named: &'static str,
    serve: fn(&str) -> Option<Served>,
) -> Model {
    Model { name, named, serve }
}

pub const MODELS: [Model; 8] = [
    model("Go, URL.Path", r#""go""#, go),
    model("Go, ServeMux", "", go_mux),
    model("WSGI", r#""wsgi""#, wsgi),
    model("Tomcat", r#""tomcat""#, tomcat),
    model("nginx", r#""nginx""#, nginx),
    model("the path as it came", AS_IT_CAME, raw),
    model("URL standard, pathname", PATHNAME, pathname),
    model(
        "URL standard, pathname, decoded",
        DECODED_PATHNAME,
        decoded_pathname,
    ),
];

const AS_IT_CAME: &str = r#"{"parameters":"keep","escapes":"keep","encoded_slash":"literal","backslash":"literal",
    "double_slash":"keep","dot_segments":"keep","query_semicolon":"literal"}"#;
const PATHNAME: &str = r#"{"parameters":"keep","escapes":"keep","encoded_slash":"literal","backslash":"raw_separator",
    "double_slash":"keep","dot_segments":"resolve_encoded","query_semicolon":"literal"}"#;
const DECODED_PATHNAME: &str = r#"{"parameters":"keep","escapes":"once","encoded_slash":"separator",
    "backslash":"raw_separator","double_slash":"keep","dot_segments":"resolve_encoded","query_semicolon":"literal"}"#;

/// Decodes once; `Err` has the text with broken escapes unchanged.
fn unescape(text: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    let mut out = Vec::new();
    let mut broken = false;
    let mut at = 0;
    while at < text.len() {
        let digits = text
            .get(at + 1..at + 3)
            .and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits
            .filter(|two| !two.starts_with('+'))
            .and_then(|two| u8::from_str_radix(two, 16).ok());
        match byte {
            Some(byte) if text[at] == b'%' => {
                out.push(byte);
                at += 3;
            }
            _ => {
                broken |= text[at] == b'%';
                out.push(text[at]);
                at += 1;
            }
        }
    }
    if broken { Err(out) } else { Ok(out) }
}

/// go/src/net/url/url.go, `parse` and `setPath`: a broken escape is an error (400), `%2F` decodes to `/`.
pub fn go(path: &str) -> Option<Served> {
    let text = unescape(path.as_bytes()).ok()?;
    Some(Served::of_text(&text))
}

/// go/src/net/http/server.go, `findHandler` (Go 1.22): patterns match `EscapedPath`, each segment unescaped by itself;
/// a path that `cleanPath` changes is redirected. url.go, `EscapedPath`: a path that holds a byte that should have
/// been escaped, here `\`, is decoded and escaped anew.
fn go_mux(path: &str) -> Option<Served> {
    let decoded = unescape(path.as_bytes()).ok()?;
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*[]%".contains(&byte);
    let segments: Vec<Vec<u8>> = if path.bytes().all(valid) {
        let segments = path.strip_prefix('/')?.split('/');
        if path.contains("//") || segments.clone().any(|one| one == "." || one == "..") {
            return None;
        }
        segments
            .map(|one| unescape(one.as_bytes()).unwrap_or_else(|text| text))
            .collect()
    } else {
        let segments = Served::of_text(&decoded).0;
        let (_, inner) = segments.split_last()?;
        if inner.iter().any(Vec::is_empty) || segments.iter().any(|one| one == b"." || one == b"..")
        {
            return None;
        }
        segments
    };
    Some(Served(segments))
}

/// PEP 3333, `PATH_INFO`, as wsgiref, gunicorn and (ASGI's `path`) uvicorn make it: `urllib.parse.unquote`, once, which
/// leaves broken escapes. Starlette's `Route` and Flask's rules match that text, dot segments and all.
fn wsgi(path: &str) -> Option<Served> {
    let text = unescape(path.as_bytes()).unwrap_or_else(|text| text);
    Some(Served::of_text(&text))
}

/// org.apache.catalina.connector.CoyoteAdapter, `postParseRequest`, with a connector's defaults: `parsePathParameters`
/// on raw bytes, then decoding (`%2F` and broken escapes: 400), then `normalize` (`\`: 400; above the root: 400).
fn tomcat(path: &str) -> Option<Served> {
    let mut rest = path.to_owned();
    while let Some(start) = rest.find(';') {
        let end = rest[start..]
            .find('/')
            .map_or(rest.len(), |end| start + end);
        rest.replace_range(start..end, "");
    }
    if rest.to_ascii_lowercase().contains("%2f") {
        return None;
    }
    let text = unescape(rest.as_bytes()).ok()?;
    normalized(&text).filter(|_| !text.contains(&b'\\') && !text.contains(&0))
}

/// src/http/ngx_http_parse.c, `ngx_http_parse_complex_uri` with `merge_slashes on`: decodes once and treats the
/// result like literal characters; broken escapes, zero bytes and `..` above the root: 400.
fn nginx(path: &str) -> Option<Served> {
    let text = unescape(path.as_bytes()).ok()?;
    normalized(&text).filter(|_| !text.contains(&0))
}

/// Merges slashes and resolves dot segments; `None` above the root.
fn normalized(text: &[u8]) -> Option<Served> {
    let given = Served::of_text(text).0;
    let mut segments: Vec<Vec<u8>> = Vec::new();
    for segment in &given {
        match segment.as_slice() {
            b"" | b"." => {}
            b".." => {
                segments.pop()?;
            }
            _ => segments.push(segment.clone()),
        }
    }
    if matches!(given.last()?.as_slice(), b"" | b"." | b"..") {
        segments.push(Vec::new());
    }
    Some(Served(segments))
}

/// Node's `req.url` and Express's router, Rust's hyper and axum: the path stays unchanged.
fn raw(path: &str) -> Option<Served> {
    Some(Served::of_text(path.as_bytes()))
}

/// url.spec.whatwg.org, "path state", of `new URL("http://host" + req.url).pathname`: `\` separates, `.` and `%2e` are
/// dots, a `..` removes even an empty segment, nothing else is decoded.
fn pathname(path: &str) -> Option<Served> {
    let path = path.replace('\\', "/");
    let given: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    let mut segments: Vec<Vec<u8>> = Vec::new();
    for (index, segment) in given.iter().enumerate() {
        let last = index + 1 == given.len();
        match segment.to_ascii_lowercase().replace("%2e", ".").as_str() {
            ".." => {
                segments.pop();
                if last {
                    segments.push(Vec::new());
                }
            }
            "." if last => segments.push(Vec::new()),
            "." => {}
            _ => segments.push(segment.as_bytes().to_vec()),
        }
    }
    Some(Served(segments))
}

/// `decodeURIComponent(url.pathname)`, as file servers and frameworks on Node, Deno and Bun do; a broken escape throws.
fn decoded_pathname(path: &str) -> Option<Served> {
    let text = unescape(&pathname(path)?.text()).ok()?;
    Some(Served::of_text(&text))
}
