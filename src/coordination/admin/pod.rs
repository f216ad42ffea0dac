//! Does a pod of Kubernetes suit a sidecar? Its manifest, read as findings of the catalogue. Pure.
//!
//! A sidecar cannot see these facts: its pod shows it neither how long it has to end nor what other containers mount.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::doctor::{Check, Failed};
use crate::config::settings::{self, Default as DefaultValue, Setting};
use crate::config::{FILE_VARIABLE, drain_timeout};
use crate::findings::sidecar::Trouble;

/// The group of these checks.
const CATEGORY: &str = "kubernetes";
/// Kubernetes's default for `terminationGracePeriodSeconds`.
const GRACE: u64 = 30;
/// How much longer than `drain_timeout` a sidecar takes: 2 s for cancelled executions, and 5 s for a slow registry.
const MARGIN: Duration = Duration::from_secs(7);
/// Where a manifest has the specification of its pod: a pod, an object with a template of pods, and a job by cron.
const PLACES: [&str; 3] = ["/spec", "/spec/template/spec", "/spec/jobTemplate/spec/template/spec"];
/// Settings that only the sidecar itself has; applications have others of the same prefix.
const OWN: [&Setting; 4] =
    [&settings::LISTEN, &settings::ZOOKEEPER, &settings::DRAIN_TIMEOUT, &settings::STATE_DIR];

/// The part of `PodSpec` that the checks read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Pod {
    init_containers: Vec<Container>,
    containers: Vec<Container>,
    termination_grace_period_seconds: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    name: String,
    image: String,
    restart_policy: String,
    command: Vec<String>,
    args: Vec<String>,
    env: Vec<Variable>,
    volume_mounts: Vec<Mount>,
    lifecycle: Lifecycle,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Variable {
    name: String,
    /// `None`: it comes from elsewhere.
    value: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Mount {
    name: String,
    mount_path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Lifecycle {
    pre_stop: Hook,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Hook {
    exec: Exec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Exec {
    command: Vec<String>,
}

/// The value of a setting in a container.
enum Given {
    /// This one.
    Is(String),
    /// No source that the manifest shows sets it.
    Default,
    /// The manifest does not show it.
    Hidden,
}

/// All checks of the pod in a manifest, in their order. The error says in which way it has no pod with a sidecar.
pub fn check(manifest: &Value) -> Result<Vec<Check>, String> {
    let spec = PLACES.iter().find_map(|place| {
        manifest.pointer(place).filter(|spec| spec.get("containers").is_some_and(Value::is_array))
    });
    let spec = spec.ok_or(
        "it is neither a pod nor an object with a template of pods; give one as JSON (`kubectl get pod NAME -o json`)",
    )?;
    let pod = Pod::deserialize(spec).map_err(|error| format!("its pod cannot be read: {error}"))?;
    let is_sidecar = |container: &&Container| container.is_sidecar();
    let (native, others): (Vec<_>, Vec<_>) =
        pod.init_containers.iter().partition(|container| container.restart_policy == "Always");
    let in_order = native.iter().copied().chain(others).chain(&pod.containers);
    let sidecar = in_order.clone().find(is_sidecar).ok_or(
        "none of its containers is a sidecar: an image `sidekeeper`, or a variable like `SIDEKEEPER_ZOOKEEPER`",
    )?;
    let is_native = native.iter().any(|container| std::ptr::eq(*container, sidecar));
    let name = || sidecar.name.clone();
    let fault = |is_so: bool, trouble: Trouble| if is_so { Err(Failed::Found(trouble)) } else { Ok(()) };
    let checks = [
        (
            "native",
            "the sidecar starts before the application, and ends after it",
            fault(!is_native, Trouble::PodNotNative { container: name() }),
        ),
        (
            "drain",
            "the sidecar drains as soon as the pod is to end",
            fault(!sidecar.drains(), Trouble::PodNoDrain { container: name() }),
        ),
        ("grace", "the pod has the time to drain", grace(&pod, sidecar)),
        ("state", "no other container mounts the session's key", state(sidecar, in_order)),
    ];
    let check = |(name, expects, result)| Check { category: CATEGORY, name, expects, result };
    Ok(checks.map(check).into())
}

fn grace(pod: &Pod, sidecar: &Container) -> Result<(), Failed> {
    let text = match sidecar.setting(&settings::DRAIN_TIMEOUT) {
        Given::Is(text) => text,
        Given::Hidden => return Err(Failed::Skipped),
        Given::Default => match settings::DRAIN_TIMEOUT.default {
            DefaultValue::Value(text) => text.to_owned(),
            DefaultValue::Detected(_) | DefaultValue::Absent(_) => return Err(Failed::Skipped),
        },
    };
    // A sidecar does not start with a timeout that cannot be read.
    let drain = drain_timeout(&text).map_err(|_| Failed::Skipped)?;
    let needed = drain.saturating_add(MARGIN);
    let grace = Duration::from_secs(pod.termination_grace_period_seconds.unwrap_or(GRACE));
    if grace < needed { Err(Failed::Found(Trouble::PodGraceShort { grace, drain, needed })) } else { Ok(()) }
}

/// The mount with the longest path that has the state in it is the volume of the state.
fn state<'a>(sidecar: &Container, mut containers: impl Iterator<Item = &'a Container>) -> Result<(), Failed> {
    let folder = match sidecar.setting(&settings::STATE_DIR) {
        Given::Is(folder) => folder,
        Given::Hidden | Given::Default => return Err(Failed::Skipped),
    };
    let holds = |mount: &&Mount| Path::new(&folder).starts_with(&mount.mount_path);
    let volume = sidecar.volume_mounts.iter().filter(holds).max_by_key(|mount| mount.mount_path.len());
    let Some(volume) = volume else { return Err(Failed::Found(Trouble::PodStateLost { folder })) };
    let has_it = |container: &&Container| {
        !std::ptr::eq(*container, sidecar)
            && container.volume_mounts.iter().any(|mount| mount.name == volume.name)
    };
    match containers.find(has_it) {
        Some(other) => Err(Failed::Found(Trouble::PodStateShared { folder, container: other.name.clone() })),
        None => Ok(()),
    }
}

impl Container {
    fn is_sidecar(&self) -> bool {
        let (image, _) = self.image.split_once('@').unwrap_or((&self.image, ""));
        let image = image.rsplit('/').next().unwrap_or_default();
        let (image, _) = image.split_once(':').unwrap_or((image, ""));
        image == "sidekeeper"
            || self.env.iter().any(|variable| OWN.iter().any(|own| own.env == variable.name))
    }

    /// Whether its hook before the end drains it.
    fn drains(&self) -> bool {
        self.lifecycle
            .pre_stop
            .exec
            .command
            .iter()
            .any(|text| text.split_whitespace().any(|word| word == "drain"))
    }

    fn setting(&self, setting: &Setting) -> Given {
        let mut words = self.command.iter().chain(&self.args);
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--") else { continue };
            let value = match flag.split_once('=') {
                Some((name, value)) if name == setting.flag => Some(value.to_owned()),
                None if flag == setting.flag => words.next().cloned(),
                Some(_) | None => continue,
            };
            return value.map_or(Given::Hidden, Given::Is);
        }
        let variable = |name: &str| self.env.iter().rfind(|variable| variable.name == name);
        match variable(setting.env) {
            Some(Variable { value: Some(value), .. }) => Given::Is(value.clone()),
            Some(_) => Given::Hidden,
            None if self.has_file() => Given::Hidden,
            None => Given::Default,
        }
    }

    /// Whether it has settings in a file.
    fn has_file(&self) -> bool {
        self.env.iter().any(|variable| variable.name == FILE_VARIABLE)
            || self.command.iter().chain(&self.args).any(|word| word.starts_with("--config"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({ "kind": "Pod", "spec": {
            "terminationGracePeriodSeconds": 32,
            "initContainers": [
                { "name": "migrate", "image": "worker" },
                {
                    "name": "keeper",
                    "image": "registry.example:5000/tools/sidekeeper:0.1@sha256:00",
                    "restartPolicy": "Always",
                    "env": [
                        { "name": "SIDEKEEPER_STATE_DIR", "value": "/run/state/key" },
                        { "name": "SIDEKEEPER_INSTANCE_IP", "valueFrom": { "fieldRef": {} } },
                    ],
                    "volumeMounts": [
                        { "name": "run", "mountPath": "/run" },
                        { "name": "state", "mountPath": "/run/state" },
                    ],
                    "lifecycle": { "preStop": { "exec": { "command": ["sidekeeper", "drain"] } } },
                },
            ],
            "containers": [{
                "name": "worker",
                "image": "worker",
                "env": [{ "name": "SIDEKEEPER_ENDPOINT", "value": "unix:///run/api.sock" }],
                "volumeMounts": [{ "name": "run", "mountPath": "/run" }],
            }],
        }})
    }

    /// The codes of the findings, and the names of the checks that were not made.
    fn codes(manifest: &Value) -> Vec<String> {
        let checks = check(manifest).unwrap();
        assert_eq!(checks.len(), 4);
        let told = |check: Check| match check.result {
            Ok(()) => None,
            Err(Failed::Skipped) => Some(check.name.to_owned()),
            Err(Failed::Found(trouble)) => Some(trouble.code().to_owned()),
        };
        checks.into_iter().filter_map(told).collect()
    }

    /// The pod with another value at a place of its specification.
    fn with(place: &str, value: Value) -> Value {
        let mut pod = pod();
        let (parent, last) = place.rsplit_once('/').unwrap();
        let at = pod.pointer_mut(&format!("/spec{parent}")).unwrap();
        match at.as_array_mut() {
            Some(list) => list.push(value),
            None => drop(at.as_object_mut().unwrap().insert(last.to_owned(), value)),
        }
        pod
    }

    fn env(name: &str, value: &str) -> Value {
        with("/initContainers/1/env/-", json!({ "name": name, "value": value }))
    }

    #[test]
    fn a_pod_that_suits_a_sidecar_has_no_finding_whatever_object_it_is_in() {
        let spec = pod()["spec"].clone();
        let template = json!({ "template": { "spec": spec } });
        for manifest in
            [pod(), json!({ "spec": template }), json!({ "spec": { "jobTemplate": { "spec": template } } })]
        {
            assert_eq!(codes(&manifest), Vec::<String>::new());
        }
    }

    #[test]
    fn each_fault_of_a_pod_is_named() {
        let keeper = pod().pointer("/spec/initContainers/1").cloned().unwrap();
        let beside =
            with("/containers/-", keeper).to_string().replace(r#""restartPolicy":"Always""#, r#""x":1"#);
        // The init container that ends, and one beside the application.
        assert_eq!(codes(&serde_json::from_str(&beside).unwrap())[0], "POD_NOT_NATIVE");
        assert_eq!(codes(&with("/initContainers/1/lifecycle", json!({}))), ["POD_NO_DRAIN"]);
        assert_eq!(codes(&with("/terminationGracePeriodSeconds", json!(31))), ["POD_GRACE_SHORT"]);
        assert_eq!(codes(&env("SIDEKEEPER_DRAIN_TIMEOUT", "26s")), ["POD_GRACE_SHORT"]);
        assert_eq!(codes(&env("SIDEKEEPER_STATE_DIR", "/run/other")), ["POD_STATE_SHARED"]);
        assert_eq!(codes(&env("SIDEKEEPER_STATE_DIR", "/var/state")), ["POD_STATE_LOST"]);
        let mount = json!({ "name": "state", "mountPath": "/elsewhere" });
        assert_eq!(codes(&with("/containers/0/volumeMounts/-", mount)), ["POD_STATE_SHARED"]);
    }

    #[test]
    fn kubernetes_has_a_grace_of_30_seconds_by_default() {
        let mut pod = pod();
        pod["spec"].as_object_mut().unwrap().remove("terminationGracePeriodSeconds");
        assert_eq!(codes(&pod), ["POD_GRACE_SHORT"]);
        let checks = check(&pod).unwrap();
        let [_, _, grace, _] = checks.as_slice() else { panic!("{checks:?}") };
        let Err(Failed::Found(trouble)) = &grace.result else { panic!("{grace:?}") };
        assert_eq!(
            trouble.message(),
            "the pod has 30s to end, and the sidecar takes up to 32s: drain_timeout is 25s"
        );
    }

    #[test]
    fn flags_come_before_variables_and_settings_that_are_not_shown_are_not_checked() {
        let flags = |words: Value| {
            let mut pod = env("SIDEKEEPER_DRAIN_TIMEOUT", "26s");
            pod["spec"]["initContainers"][1]["args"] = words;
            codes(&pod)
        };
        assert_eq!(flags(json!(["serve", "--drain-timeout", "5s"])), Vec::<String>::new());
        assert_eq!(flags(json!(["serve", "--drain-timeout=5s"])), Vec::<String>::new());
        assert_eq!(flags(json!(["serve", "--drain-timeout"])), ["grace"]);
        assert_eq!(codes(&env("SIDEKEEPER_DRAIN_TIMEOUT", "soon")), ["grace"]);
        assert_eq!(codes(&env(FILE_VARIABLE, "/etc/sidekeeper.toml")), ["grace"]);
        let secret = json!({ "name": "SIDEKEEPER_DRAIN_TIMEOUT", "valueFrom": {} });
        assert_eq!(codes(&with("/initContainers/1/env/-", secret)), ["grace"]);
        assert_eq!(codes(&with("/initContainers/1/env", json!([]))), ["state"]);
    }

    #[test]
    fn a_manifest_without_a_pod_or_without_a_sidecar_is_refused() {
        for manifest in [json!(1), json!({}), json!({ "kind": "List", "items": [pod()] })] {
            assert!(check(&manifest).unwrap_err().starts_with("it is neither a pod nor"));
        }
        let worker = json!({ "spec": { "containers": [{ "name": "worker", "image": "not-sidekeeper" }] } });
        assert!(check(&worker).unwrap_err().starts_with("none of its containers is a sidecar"));
        let wrong = json!({ "spec": { "containers": [{ "name": 3 }] } });
        assert!(check(&wrong).unwrap_err().starts_with("its pod cannot be read: "));
    }
}
