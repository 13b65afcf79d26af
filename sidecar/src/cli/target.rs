//! Where a command's decisions are made: by a running sidecar, or in this process on the shared store.

use reqwest::Method;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use sluicegate_protocol::{
    Answer, DECIDE_PATH, Decision, Listed, Problem, RESET_PATH, Reset, SETTLE_PATH, Settle,
    Settled, Verdict, WasReset,
};

use super::Failure;
use super::checks::{COST, refused};
use super::client::{Client, Patience};
use super::direct::{Direct, OnStore};
use super::endpoint::{Endpoint, SIDECAR_PORT};
use super::output::Output;

/// Where decisions are made.
#[derive(clap::Args)]
pub struct Target {
    /// The sidecar's decision port: a URL, or `unix:` followed by a path [env: SLUICEGATE_SIDECAR] [default:
    /// http://127.0.0.1:9180]
    #[arg(long, value_name = "URL", conflicts_with = "policy")]
    sidecar: Option<Endpoint>,
    #[command(flatten)]
    direct: Direct,
    #[command(flatten)]
    pub patience: Patience,
}

impl Target {
    /// Connects to the sidecar or opens the store.
    pub async fn open(self) -> Result<Decider, Failure> {
        match self.direct.open(&self.patience).await? {
            Some(store) => Ok(Decider::Here(Box::new(store))),
            None => Client::new(&SIDECAR_PORT, self.sidecar, None, &self.patience)
                .map(|client| Decider::Sidecar(client, DECIDE_PATH)),
        }
    }
}

/// Makes decisions.
pub enum Decider {
    /// A running sidecar, and where it takes decisions: on its admin port, which is given the digits of keys and only looks,
    /// elsewhere than on the other.
    Sidecar(Client, &'static str),
    /// This process.
    Here(Box<OnStore>),
}

impl Decider {
    /// The verdicts on decisions, in the same order.
    pub async fn decide<const N: usize>(
        &self,
        decisions: [&Decision<'_>; N],
    ) -> Result<[Verdict<'static>; N], Failure> {
        let verdicts: Vec<_> = match self {
            Self::Here(store) => {
                let asked = decisions.into_iter().collect();
                store.service.decide(&asked, |_| None).await.verdicts
            }
            Self::Sidecar(client, path) => {
                let body = json!({ "decisions": decisions.as_slice() });
                // Its text, from which an `Answer` borrows.
                let text: Box<RawValue> = client.send(Method::POST, path, &body).await?;
                let answer: Answer<'_> = serde_json::from_str(text.get())
                    .map_err(|error| client.not_a_sidecar(error))?;
                let verdicts = answer.verdicts.into_iter();
                verdicts.map(Verdict::into_owned).collect()
            }
        };
        verdicts.try_into().map_err(|_| {
            self.not_understood("the number of verdicts differs from the number of decisions")
        })
    }

    /// Settles receipts; answers with an outcome for each entry.
    pub async fn settle(&self, entries: &[Settle<'_>]) -> Result<Vec<Settled>, Failure> {
        let listed = match self {
            Self::Here(store) => {
                let entries: Vec<_> = entries.iter().cloned().map(Ok).collect();
                store.service.settle(&entries, None).await
            }
            Self::Sidecar(client, _) => {
                let body = json!({ "settles": entries });
                client.send(Method::POST, SETTLE_PATH, &body).await?
            }
        };
        Ok(listed.outcomes)
    }

    /// Restores the whole quota of a limit for a key, or frees its slots.
    pub async fn reset(&self, entry: &Reset<'_>) -> Result<Vec<WasReset>, Failure> {
        let listed: Listed<_> = match self {
            Self::Here(store) => store.service.reset(&[Ok(entry.clone())]).await,
            Self::Sidecar(client, _) => {
                let body = json!({ "resets": [entry] });
                client.send(Method::POST, RESET_PATH, &body).await?
            }
        };
        Ok(listed.outcomes)
    }

    /// Prints the outcome of the only entry. `tell` has its text, or the error in the entry; or neither: the store did not
    /// answer.
    pub fn end<T: Serialize>(
        &self,
        outcomes: &[T],
        output: Output,
        tell: impl Fn(&T) -> Result<String, Option<&Problem>>,
    ) -> Result<(), Failure> {
        let outcome = outcomes.first();
        let outcome = outcome.ok_or_else(|| self.not_understood("the answer has no outcome"))?;
        // The command's error message has the cause.
        output.print(outcome, |outcome| tell(outcome).unwrap_or_default())?;
        let told = tell(outcome).map(drop);
        told.map_err(|problem| problem.map_or_else(|| self.unavailable(), |it| refused(it, COST)))
    }

    /// The store did not answer.
    pub fn unavailable(&self) -> Failure {
        match self {
            Self::Sidecar(..) => Failure::unavailable(
                "the sidecar's store did not answer; `/readyz` on its admin port shows the cause",
            ),
            Self::Here(store) => store.unavailable(),
        }
    }

    fn not_understood(&self, why: &str) -> Failure {
        match self {
            Self::Sidecar(client, _) => client.not_a_sidecar(why),
            Self::Here(_) => Failure::system(why),
        }
    }
}
