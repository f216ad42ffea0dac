//! What each method needs of its caller, and what it costs the sidecar: the one table of all methods. Pure.

use crate::config::Role;
use crate::listen::authorize::Need;
use crate::listen::calls::Cost;

const NOTHING: Need = Need::Nothing;
const ATTACH: Need = Need::OneOf(&[Role::Attach]);
const VIEW: Need = Need::OneOf(&[Role::View]);
/// Applications need it, and so do those who look.
const ATTACH_OR_VIEW: Need = Need::OneOf(&[Role::Attach, Role::View]);
const OPERATE: Need = Need::OneOf(&[Role::Operate]);
const OPERATE_ALL: Need = Need::OneOfForAll(&[Role::Operate]);

/// The methods by their paths, in the order of the paths.
const METHODS: &[(&str, Need, Cost)] = &[
    ("/grpc.health.v1.Health/Check", NOTHING, Cost::Small),
    ("/grpc.health.v1.Health/Watch", NOTHING, Cost::Small),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", VIEW, Cost::Large),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", VIEW, Cost::Large),
    ("/sidekeeper.v1.AssignmentService/WatchAssignments", VIEW, Cost::Small),
    ("/sidekeeper.v1.DiagnosticsService/CheckDeployment", VIEW, Cost::Large),
    ("/sidekeeper.v1.DiagnosticsService/CollectBundle", OPERATE_ALL, Cost::Large),
    ("/sidekeeper.v1.DiagnosticsService/ExplainJob", VIEW, Cost::Large),
    ("/sidekeeper.v1.DiagnosticsService/PlanSharding", VIEW, Cost::Large),
    ("/sidekeeper.v1.ElectionService/Campaign", ATTACH, Cost::Small),
    ("/sidekeeper.v1.ElectionService/Observe", ATTACH_OR_VIEW, Cost::Small),
    ("/sidekeeper.v1.ElectionService/Resign", ATTACH, Cost::Small),
    ("/sidekeeper.v1.JobService/CancelExecutions", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.JobService/DisableItems", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.JobService/DisableServers", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.JobService/EnableItems", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.JobService/EnableServers", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.JobService/GetJob", VIEW, Cost::Large),
    ("/sidekeeper.v1.JobService/ListJobs", VIEW, Cost::Large),
    ("/sidekeeper.v1.JobService/ListServers", VIEW, Cost::Large),
    ("/sidekeeper.v1.JobService/ListTriggers", VIEW, Cost::Large),
    ("/sidekeeper.v1.JobService/RemoveJob", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.JobService/RemoveServers", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.JobService/StopInstances", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.JobService/TriggerJob", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.JobService/UpdateJob", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.LockService/BreakLock", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.LockService/GetLock", VIEW, Cost::Large),
    ("/sidekeeper.v1.LockService/Hold", ATTACH, Cost::Small),
    ("/sidekeeper.v1.LockService/ListLocks", VIEW, Cost::Large),
    ("/sidekeeper.v1.LockService/Release", ATTACH, Cost::Small),
    ("/sidekeeper.v1.LockService/RequestRevocation", OPERATE, Cost::Operation),
    ("/sidekeeper.v1.LockService/WatchLock", VIEW, Cost::Small),
    ("/sidekeeper.v1.NamespaceService/BackupNamespace", OPERATE_ALL, Cost::Large),
    ("/sidekeeper.v1.NamespaceService/RestoreNamespace", OPERATE_ALL, Cost::Operation),
    ("/sidekeeper.v1.ParticipantService/AcknowledgeAssignment", ATTACH, Cost::Small),
    ("/sidekeeper.v1.ParticipantService/Attach", ATTACH, Cost::Small),
    ("/sidekeeper.v1.ParticipantService/Detach", ATTACH, Cost::Small),
    ("/sidekeeper.v1.ParticipantService/DrainAttachment", ATTACH, Cost::Small),
    ("/sidekeeper.v1.ParticipantService/RenewLease", ATTACH, Cost::Small),
    ("/sidekeeper.v1.ParticipantService/ReportCompletion", ATTACH, Cost::Small),
    ("/sidekeeper.v1.ParticipantService/ReportListener", ATTACH, Cost::Small),
    ("/sidekeeper.v1.ParticipantService/ReportProgress", ATTACH, Cost::Small),
    ("/sidekeeper.v1.SidecarService/Drain", OPERATE_ALL, Cost::Operation),
    ("/sidekeeper.v1.SidecarService/GetStatus", VIEW, Cost::Large),
    ("/sidekeeper.v1.SidecarService/SetLogFilter", OPERATE_ALL, Cost::Operation),
    ("/sidekeeper.v1.SidecarService/TailLogs", OPERATE_ALL, Cost::Large),
    ("/sidekeeper.v1.StickyLockService/GetStickyLock", VIEW, Cost::Large),
    ("/sidekeeper.v1.StickyLockService/Leave", ATTACH, Cost::Small),
    ("/sidekeeper.v1.StickyLockService/ListStickyLocks", VIEW, Cost::Large),
    ("/sidekeeper.v1.StickyLockService/ResignOwnership", ATTACH, Cost::Small),
    ("/sidekeeper.v1.StickyLockService/Resolve", ATTACH, Cost::Small),
    ("/sidekeeper.v1.StickyLockService/SaveCheckpoint", ATTACH, Cost::Small),
    ("/sidekeeper.v1.StickyLockService/Stand", ATTACH, Cost::Small),
    ("/sidekeeper.v1.StickyLockService/TryRun", ATTACH, Cost::Small),
];

/// What the method with this path needs. `None`: there is no such method.
pub(super) fn need(path: &str) -> Option<Need> {
    find(path).map(|(_, need, _)| *need)
}

/// The path of the method with this path, without end.
pub(super) fn known(path: &str) -> Option<&'static str> {
    find(path).map(|(path, ..)| *path)
}

/// The cost of a call of the method with this path.
pub(super) fn cost(path: &str) -> Cost {
    find(path).map_or(Cost::Small, |(_, _, cost)| *cost)
}

fn find(path: &str) -> Option<&'static (&'static str, Need, Cost)> {
    let at = METHODS.binary_search_by_key(&path, |(path, ..)| path).ok()?;
    METHODS.get(at)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;
    use crate::listen::token::is_open;
    use crate::proto;

    #[test]
    fn se_4_the_table_has_exactly_the_methods_that_are_served() {
        let sets = [
            proto::DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let mut served = BTreeSet::new();
        for file in sets.into_iter().flat_map(|set| FileDescriptorSet::decode(set).unwrap().file) {
            for service in &file.service {
                let path = |method: &str| format!("/{}.{}/{method}", file.package(), service.name());
                served.extend(service.method.iter().map(|method| path(method.name())));
            }
        }
        let decided: Vec<_> = METHODS.iter().map(|(path, ..)| (*path).to_owned()).collect();
        assert_eq!(decided, served.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn se_4_a_method_has_its_need_and_only_health_needs_nothing() {
        for (path, told, _) in METHODS {
            assert_eq!(need(path), Some(*told), "{path}");
            assert_eq!(is_open(path), *told == Need::Nothing, "{path}");
        }
        for other in ["", "/", "/sidekeeper.v1.SidecarService/drain", "/sidekeeper.v1.SidecarService/Drain/"]
        {
            assert_eq!(need(other), None, "{other:?}");
        }
    }
}
