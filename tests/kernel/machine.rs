//! What a trace cannot say in one line.

use crate::trace::runs;

#[test]
fn ec_r6_the_rejected_reply_is_not_replayed_to_the_model() {
    for run in runs("EC-R2") {
        assert!(run.requests[1].ask.append.is_empty());
    }
}
