//! A host that has nothing left to watch files with, as a node has with many pods of one user.

use sluicegate_tests::ask::logs;
use sluicegate_tests::policy::policy;
use sluicegate_tests::process::write_program;
use sluicegate_tests::sidecar::{Sidecar, binary};

#[tokio::test]
async fn without_inotify_the_policy_is_read_every_second() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("without-inotify");
    let namespace = "exec unshare --user --map-root-user sh -c \
         'echo 0 >/proc/sys/user/max_inotify_instances && exec \"$0\" \"$@\"'";
    let script = format!("#!/bin/sh\n{namespace} {} \"$@\"\n", binary().display());
    write_program(&program, &script);
    let planned = Sidecar::with(&policy("memory", "fixed_window", 5, "1h"));
    let sidecar = planned.program(&program).start(folder.path()).await;
    logs(&sidecar, "raise `fs.inotify.max_user_instances`").await;
    let raised = policy("memory", "fixed_window", 7, "1h");
    std::fs::write(&sidecar.policy, raised).unwrap();
    sidecar.reaches("sluicegate_policy_epoch", 2.0).await;
}
