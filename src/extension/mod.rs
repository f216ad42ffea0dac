//! Sidekeeper's own nodes and properties, beside those of ElasticJob's protocol. Pure.
//!
//! This room turns bytes and texts into values, and values into bytes and texts. It makes no decision about
//! the next step, and has no clock, task or channel. Java peers ignore all of this: the nodes are under a
//! root of their own beside the namespace (protocol 12), and Java peers keep and ignore unknown keys of
//! `props`.
//!
//! | node under `/{namespace}-sidekeeper/{job}` | content |
//! | --- | --- |
//! | `fires/{item}`, persistent | the ledger's entry: [`ledger_entry`] |
//! | `fires/witness-{instant}`, persistent | nothing; items have missed this fire ([`ledger_entry`]) |
//! | `checkpoints/{item}`, persistent | [`checkpoint`] |
//! | `finished`, persistent | the state in which the housekeeper has found the job finished (`coordination::admin::finished`) |
//! | `fleet/members` | nothing; its version grows whenever items change their owner without a resharding |
//! | `fleet/members/{instance}`, ephemeral | a line each: `weight 1`, `label gpu`, `rule rendezvous`, `reads witnesses`, `reads cancels`, `reads triggers`, `leaving`, `away` ([`profile`]) |
//! | `fleet/names/{name}`, persistent | a line `instance {id}`: the instance that has the name, or had it last; then as above ([`name_record`]) |
//! | `fleet/cancels/{request id}`, persistent | `all` or `items 3 4 5`: cancels the older executions of these items ([`cancel_wish`]); later requests delete it after ten minutes |
//! | `fleet/triggers/{request id}.{item}`, persistent | a trigger of one item, with a parameter or without one ([`item_trigger`]); the item's owner deletes it when its execution has ended |
//! | `requests/{request id}`, `requests/{request id}.1` and so on, persistent | what an operator's request has done ([`request_record`]); later requests delete it after ten minutes |
//! | `fleet/handoff`, ephemeral, the leader's | a line for each instance that is to get items: `{instance} 3 4 5`; `- 6`: no owner ([`handoff_plan`]) |
//! | `fleet/notes/item-{item}`, `fleet/notes/server-{address}`, persistent | who has disabled the item or the server, why, and until when: `by uid 1000`, `reason disk full`, `until 2026-11-28T12:00:00Z` ([`note`]) |
//!
//! The nodes of sticky locks are in [`sticky`]. `@-@restored` beside the jobs' folders is explained in [`restored`],
//! `@-@housekeeper` in [`removal`].
//!
//! A reader skips content that it does not know, so that a later version may write more.

pub mod cancel_wish;
pub mod checkpoint;
pub mod execution_policy;
pub mod handoff_plan;
pub mod handoff_policy;
pub mod item_lock;
pub mod item_trigger;
pub mod ledger_entry;
pub mod lock;
pub mod name_record;
pub mod note;
pub mod once_listener;
pub mod path;
pub mod profile;
pub mod properties;
pub mod reattach_grace;
pub mod removal;
pub mod rendezvous;
pub mod request_record;
pub mod restored;
pub mod sticky;
pub mod strategy;

mod duration_text;
mod props;
