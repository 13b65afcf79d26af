//! One subject has one key, however a client spells it: each spelling of a table goes through a real Envoy and the filter
//! to web frameworks as they are installed. What a framework reads as the same subject must be counted under one key.
//!
//! | file | what reads the request |
//! |---|---|
//! | `starlette_echo.py` | Starlette, FastAPI's `HTTPBearer`, uvicorn |
//! | `django_echo.py` | Django, gunicorn |
//! | `flask_echo.py` | Flask, Werkzeug |
//! | `wsgi_echo.py` | the standard library, behind gunicorn and wsgiref |
//! | `express_echo.js` | Express, cookie-parser, qs |
//! | `echo.php` | PHP |
//! | `requirements.txt`, `package.json` | their versions, which `tests/setup full` installs |

mod spellings;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use sluicegate_tests::client;
use sluicegate_tests::envoy::{Envoy, at};
use sluicegate_tests::policy::{policy, pushed, with_sets};
use sluicegate_tests::process::{Process, free_port, repository};
use sluicegate_tests::sidecar::Sidecar;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use spellings::{SOURCES, Source, Spelling};

const QUOTA: u64 = 1_000;
/// What the first request of the subject costs: more than all other spellings together, so that what its key has taken
/// since tells it from every other key.
const FIRST: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(30);

/// What reads a request.
struct Framework {
    name: &'static str,
    /// The program and its arguments; `PORT` is the port.
    command: &'static str,
}

const FRAMEWORKS: [Framework; 7] = [
    Framework {
        name: "Starlette",
        command: ".tools/frameworks/bin/python starlette_echo.py PORT",
    },
    Framework {
        name: "Django",
        command: ".tools/frameworks/bin/gunicorn --bind 127.0.0.1:PORT django_echo",
    },
    Framework {
        name: "Flask",
        command: ".tools/frameworks/bin/python flask_echo.py PORT",
    },
    Framework {
        name: "gunicorn",
        command: ".tools/frameworks/bin/gunicorn --bind 127.0.0.1:PORT wsgi_echo",
    },
    Framework {
        name: "wsgiref",
        command: ".tools/frameworks/bin/python wsgi_echo.py PORT",
    },
    Framework {
        name: "Express",
        command: "node express_echo.js PORT",
    },
    Framework {
        name: "PHP",
        command: "php -d log_errors=0 -S 127.0.0.1:PORT echo.php",
    },
];

impl Framework {
    async fn start(&self, port: u16, log: PathBuf) -> Process {
        let mut words = self.command.split(' ');
        let program = words.next().unwrap_or_default();
        let program = match program.strip_prefix(".tools") {
            Some(_) => repository(program),
            None => program.into(),
        };
        let mut command = Command::new(program);
        command
            .args(words.map(|word| word.replace("PORT", &port.to_string())))
            .current_dir(repository("tests/full/frameworks"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NODE_PATH", repository(".tools/frameworks/node_modules"));
        let mut process = Process::start(&mut command, &log, "tests/setup full installs it");
        let url = format!("http://127.0.0.1:{port}/ready");
        process
            .wait_until(self.name, async || client::answers(&url).await)
            .await;
        process
    }
}

/// A rule for each source, by the path of the same name.
fn sets() -> Value {
    let rule = |source: &Source| {
        json!({
            "name": source.name,
            "match": { "path": format!("/{}", source.name) },
            "checks": [{
                "limit": "per-key",
                "key": [source.component()],
                "cost": { "header": "x-cost", "max": FIRST, "trusted": true, "default": 1 },
                "when_missing": "deny",
            }],
            "when_unavailable": "deny",
        })
    };
    json!({ "s": {
        "reply": { "headers": "draft", "on_admitted": true },
        "rules": SOURCES.iter().map(rule).collect::<Vec<_>>(),
    } })
}

/// What came of a request.
enum Answer {
    /// The filter has refused it.
    Refused,
    /// What the framework has read, and the units that its key had taken.
    Read { value: Value, taken: u64 },
}

async fn ask(port: u16, source: &Source, spelling: Spelling, cost: u64) -> Answer {
    let shown = spelling.escape_ascii();
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(&source.request(spelling, cost)).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = tokio::time::timeout(PATIENCE, exchange).await;
    let answer = answer.expect("an answer in time").expect("an answer");
    match answer.get(9..12) {
        Some("400" | "403") => return Answer::Refused,
        Some("200") => {}
        _ => panic!("{shown}: {answer}"),
    }
    let remaining = answer
        .split_once(";r=")
        .and_then(|(_, rest)| rest.split([';', '\r']).next()?.parse().ok());
    let remaining: u64 = remaining.unwrap_or_else(|| panic!("{shown} is unmetered: {answer}"));
    let body = answer.find('{').zip(answer.rfind('}'));
    let body = body.and_then(|(from, to)| serde_json::from_str::<Value>(&answer[from..=to]).ok());
    let mut body = body.unwrap_or_else(|| panic!("{shown}: {answer}"));
    Answer::Read {
        value: body[source.name].take(),
        taken: QUOTA - remaining,
    }
}

/// A row of the table: how many spellings were read as the subject, how many were refused, and which of the first were
/// counted under another key.
async fn row(port: u16, source: &Source) -> (usize, usize, Vec<String>) {
    let (mut same, mut refused, mut elsewhere) = (0, 0, Vec::new());
    for (number, spelling) in source.spellings.iter().enumerate() {
        let cost = if number == 0 { FIRST } else { 1 };
        match ask(port, source, spelling, cost).await {
            Answer::Refused => refused += 1,
            Answer::Read { value, taken } if value == json!("s") => {
                same += 1;
                if taken < FIRST {
                    elsewhere.push(spelling.escape_ascii().to_string());
                }
            }
            Answer::Read { .. } => {}
        }
    }
    (same, refused, elsewhere)
}

/// Sends all spellings through an Envoy in front of it; those that it reads as the subject and that another key paid for.
async fn counted_elsewhere(framework: &Framework) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let (name, port) = (framework.name, free_port());
    let log = folder.path().join("upstream.log");
    let _upstream = framework.start(port, log).await;
    let policy = with_sets(&policy("memory", "sliding_log", QUOTA, "1h"), &sets());
    let sidecar = Sidecar::start(&policy, folder.path()).await;
    let envoy = Envoy::asking(sidecar.port).upstream(port).plugin(pushed());
    // Some of these servers close connections that Envoy is about to use again.
    let envoy = envoy.patch(|config| {
        let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        at(config, "/static_resources/clusters/0")["typed_extension_protocol_options"] = json!({ options: {
            "@type": format!("type.googleapis.com/{options}"),
            "explicit_http_config": { "http_protocol_options": {} },
            "common_http_protocol_options": { "max_requests_per_connection": 1 },
        } });
    });
    let envoy = envoy.start(folder.path()).await;
    let mut failures = Vec::new();
    for source in &SOURCES {
        let (same, refused, elsewhere) = row(envoy.port, source).await;
        let (all, keys) = (source.spellings.len(), 1 + elsewhere.len());
        println!(
            "{name} {}: {all} spellings, {same} read as the subject under {keys} keys, {refused} refused",
            source.name,
        );
        assert!(same > 1, "{name} reads no {}", source.name);
        failures.extend(
            elsewhere
                .iter()
                .map(|spelling| format!("{name} {spelling}")),
        );
    }
    assert_eq!(envoy.vm_deaths().await, 0);
    failures
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_framework_reads_as_one_subject_has_one_key() {
    let failures = join_all(FRAMEWORKS.iter().map(counted_elsewhere)).await;
    let failures = failures.concat();
    assert!(
        failures.is_empty(),
        "keys of their own:\n{}",
        failures.join("\n")
    );
}
