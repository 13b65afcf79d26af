//! The open connections of one listener: their maximum number, and which to close when there are too many or one is
//! overdue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinSet};

use super::connection::{CloseOrder, Connection};

/// The open connections of a listener, each served by a task. Dropping it closes them.
#[derive(Debug)]
pub(super) struct Connections {
    max: usize,
    /// Their tasks run on the thread that accepts them.
    aside: bool,
    open: HashMap<Id, (Arc<Connection>, AbortHandle)>,
    tasks: JoinSet<()>,
}

impl Connections {
    pub fn new(max: usize, aside: bool) -> Self {
        Self {
            max,
            aside,
            open: HashMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Serves a new connection in a task, closing another one if necessary and possible. Returns, for the log, what was closed.
    pub fn admit(
        &mut self,
        connection: Arc<Connection>,
        served: impl Future<Output = ()> + Send + 'static,
    ) -> Option<&'static str> {
        self.forget_ended();
        let full = self.open.len() >= self.max;
        if full && !self.close_first(|_| true) {
            return Some("it is closed, because all others wait for answers");
        }
        let task = if self.aside {
            self.tasks.spawn_local(served)
        } else {
            self.tasks.spawn(served)
        };
        self.open.insert(task.id(), (connection, task));
        full.then_some("an old one is closed")
    }

    /// Closes the oldest connection that never got an answer, if there is one.
    pub fn close_unanswered(&mut self) {
        self.close_first(|order| !order.answered);
    }

    /// Closes the first of these connections, if there is one.
    fn close_first(&mut self, among: impl Fn(&CloseOrder) -> bool) -> bool {
        let ordered = self.open.iter().filter_map(|(id, (connection, _))| {
            let order = connection.close_order().filter(&among)?;
            Some((order, *id))
        });
        let first = ordered.min_by_key(|(order, _)| *order);
        let Some((_, task)) = first.and_then(|(_, id)| self.open.remove(&id)) else {
            return false;
        };
        task.abort();
        true
    }

    /// Closes overdue connections.
    pub fn close_overdue(&mut self, now_us: u64, idle: Duration) {
        self.forget_ended();
        self.open.retain(|_, (connection, task)| {
            let overdue = connection.is_overdue(now_us, idle);
            if overdue {
                task.abort();
            }
            !overdue
        });
    }

    /// How many are open.
    pub fn left(&mut self) -> usize {
        self.forget_ended();
        self.open.len()
    }

    fn forget_ended(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
            self.open.remove(&id);
        }
    }
}
