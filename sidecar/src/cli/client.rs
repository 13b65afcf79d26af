//! Calls to a running sidecar.

use std::error::Error;
use std::iter::successors;
use std::time::Duration;

use axum::body::Bytes;
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Failure;
use super::endpoint::{Endpoint, Port};
use super::exit::Exit;

/// How long a command waits.
#[derive(clap::Args)]
pub struct Patience {
    /// How long to wait for an answer. Units of a decision that was given up may have been taken: a sidecar waits for its store
    /// for up to twice the policy's `store_timeout`.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

/// A client that waits so long for an answer.
pub fn http(endpoint: &Endpoint, timeout: Duration) -> Result<reqwest::Client, Failure> {
    // No proxy: sidecars and Envoys are usually on this machine.
    let http = reqwest::Client::builder().no_proxy().timeout(timeout);
    // Nor another place than the one that was named.
    let mut http = http.redirect(Policy::none());
    if let Endpoint::Unix(path) = endpoint {
        http = http.unix_socket(path.clone());
    }
    http.build().map_err(Failure::system)
}

/// Why a request failed: the innermost cause, since reqwest's own text does not say why a connection failed.
pub fn cause(error: &reqwest::Error) -> String {
    let causes = successors(Some(error as &dyn Error), |&error| error.source());
    causes.last().map(ToString::to_string).unwrap_or_default()
}

/// A client of one port of one sidecar.
pub struct Client {
    http: reqwest::Client,
    endpoint: Endpoint,
    token: Option<String>,
    remedy: &'static str,
}

/// The body of a sidecar's error.
#[derive(Deserialize)]
struct Refusal {
    #[serde(alias = "detail")]
    message: String,
}

impl Client {
    /// A client for a port, at the address that its argument gave or else at its usual one.
    pub fn new(
        port: &Port,
        given: Option<Endpoint>,
        token: Option<String>,
        patience: &Patience,
    ) -> Result<Self, Failure> {
        let endpoint = port.endpoint(given)?;
        Ok(Self {
            http: http(&endpoint, patience.timeout)?,
            endpoint,
            token,
            remedy: port.remedy,
        })
    }

    /// Sends a GET and parses the response body.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let request = self.http.get(self.endpoint.url(path));
        self.answer(path, request).await
    }

    /// Sends a GET and returns the response body.
    pub async fn text(&self, path: &str) -> Result<String, Failure> {
        let request = self.http.get(self.endpoint.url(path));
        let body = self.body(path, request).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Sends a JSON body and parses the response body.
    pub async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let request = self.http.request(method, self.endpoint.url(path));
        self.answer(path, request.json(body)).await
    }

    async fn answer<T: DeserializeOwned>(
        &self,
        path: &str,
        request: RequestBuilder,
    ) -> Result<T, Failure> {
        let body = self.body(path, request).await?;
        serde_json::from_slice(&body).map_err(|error| self.not_a_sidecar(error))
    }

    /// The body of a successful response.
    async fn body(&self, path: &str, request: RequestBuilder) -> Result<Bytes, Failure> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let answered = async {
            let answer = request.send().await?;
            Ok((answer.status(), answer.bytes().await?))
        };
        let (status, body) = answered.await.map_err(|error| self.away(path, &error))?;
        if status.is_success() {
            return Ok(body);
        }
        let (own, why) = match serde_json::from_slice(&body) {
            Ok(Refusal { message }) => (true, message),
            Err(_) => (false, String::from_utf8_lossy(&body).trim().to_owned()),
        };
        let why = format!("{}{path} answered {status}: {why}", self.endpoint);
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Failure::new(Exit::NotPermitted, why)
            }
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::CONFLICT => {
                Failure::usage(why)
            }
            // Its own answer: it was reached.
            StatusCode::SERVICE_UNAVAILABLE if own => Failure::unavailable(why),
            _ => Failure::unavailable(format_args!("{why}; {}", self.remedy)),
        })
    }

    fn away(&self, path: &str, error: &reqwest::Error) -> Failure {
        Failure::unavailable(format_args!(
            "no answer from {}{path}: {}. Is the sidecar running? {}",
            self.endpoint,
            cause(error),
            self.remedy
        ))
    }

    /// The error for an answer that no sidecar gives.
    pub fn not_a_sidecar(&self, error: impl std::fmt::Display) -> Failure {
        Failure::unavailable(format_args!(
            "the server at {} is not a Sluicegate sidecar: {error}; {}",
            self.endpoint, self.remedy
        ))
    }
}
