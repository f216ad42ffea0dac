//! Job configurations from and to YAML (protocol 1.4): documents of Java and written documents are read, and no document
//! in a registry stops the process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use sidekeeper::elasticjob::config_yaml::{ConfigProblem, Parsed, parse, parse_local, write};
use sidekeeper::extension::strategy::move_own_strategy;
use sidekeeper::job::{JobConfiguration, JobName};

fn read(text: &str) -> Parsed {
    parse(text.as_bytes()).unwrap_or_else(|problem| panic!("{problem}\n{text}"))
}

fn clean(text: &str) -> JobConfiguration {
    let parsed = read(text);
    assert_eq!(parsed.problems, [""; 0], "{text}");
    parsed.configuration
}

/// A document with the two required keys and these lines.
fn with(lines: &str) -> String {
    format!("jobName: demoJob\nshardingTotalCount: 3\n{lines}")
}

fn refused(text: &str, expected: &Expect) {
    expected.assert_eq(&parse(text.as_bytes()).unwrap_err().to_string());
}

/// Written by Java 3.0.5 (protocol 1.4).
const OBSERVED: &str = "cron: 0/5 * * * * ?
description: ''
disabled: false
failover: false
jobName: demoJob
jobParameter: ''
maxTimeDiffSeconds: -1
misfire: true
monitorExecution: true
overwrite: false
reconcileIntervalMinutes: 10
shardingItemParameters: 0=Beijing,1=Shanghai,2=Guangzhou
shardingTotalCount: 3
staticSharding: false
";

#[test]
fn a_document_that_java_wrote_is_read() {
    let configuration = clean(OBSERVED);
    let mut expected = JobConfiguration::new(JobName::parse("demoJob").unwrap(), 3);
    expected.cron = Some("0/5 * * * * ?".to_owned());
    expected.sharding_item_parameters = "0=Beijing,1=Shanghai,2=Guangzhou".to_owned();
    assert_eq!(configuration, expected);
}

#[test]
fn every_key_is_written_in_order_and_every_text_is_quoted() {
    let mut configuration = clean(OBSERVED);
    configuration.label = Some("it's".to_owned());
    configuration.time_zone = Some("GMT+8:00".to_owned());
    configuration.job_listener_types = vec!["LOG".to_owned()];
    configuration.job_error_handler_type = Some("DINGTALK".to_owned());
    configuration.description = "two\nlines\u{7f}\u{2028}\t\"\\".to_owned();
    configuration.props.insert("a: b".to_owned(), "0123".to_owned());
    expect![[r#"
        cron: '0/5 * * * * ?'
        description: "two\nlines\x7F\u2028\t\"\\"
        disabled: false
        failover: false
        jobErrorHandlerType: 'DINGTALK'
        jobListenerTypes:
        - 'LOG'
        jobName: 'demoJob'
        jobParameter: ''
        label: 'it''s'
        maxTimeDiffSeconds: -1
        misfire: true
        monitorExecution: true
        overwrite: false
        props:
          'a: b': '0123'
        reconcileIntervalMinutes: 10
        shardingItemParameters: '0=Beijing,1=Shanghai,2=Guangzhou'
        shardingTotalCount: 3
        staticSharding: false
        timeZone: 'GMT+8:00'
    "#]]
    .assert_eq(&write(&configuration));
    assert_eq!(clean(&write(&configuration)), configuration);
}

#[test]
fn absent_keys_have_the_defaults_of_the_registry_or_of_a_job_file() {
    let registry = clean("jobName: a\nshardingTotalCount: 1\n");
    assert_eq!(
        (registry.misfire, registry.monitor_execution, registry.reconcile_interval_minutes),
        (false, false, 0)
    );
    let local = parse_local(b"jobName: a\nshardingTotalCount: 1\n").unwrap().configuration;
    assert_eq!(local, JobConfiguration::new(JobName::parse("a").unwrap(), 1));
}

#[test]
fn texts_keep_their_written_form() {
    for (written, text) in [
        ("0123", "0123"),
        ("yes", "yes"),
        ("1.50", "1.50"),
        ("2024-01-31", "2024-01-31"),
        ("'null'", "null"),
        ("!!str null", "null"),
        ("null", ""),
        ("~", ""),
        ("", ""),
        ("a  # comment", "a"),
        ("a#b", "a#b"),
        ("'a''b'", "a'b"),
        ("\"a\\x41\\u4e2d\\U0001F600\\n\"", "aA\u{4e2d}\u{1F600}\n"),
        ("\u{4e2d}\u{6587} \u{1F600}", "\u{4e2d}\u{6587} \u{1F600}"),
        ("a b\n  c\n\n  d", "a b c\nd"),
        ("|\n  a\n   b\n", "a\n b\n"),
        ("|-\n  a\n\n  b", "a\n\nb"),
        ("|+\n  a\n", "a\n\n"),
        ("|2-\n    a", "  a"),
        (">-\n  a\n  b\n", "a b"),
        ("'a\n  b\n\n  c'", "a b\nc"),
        ("\"a\\\n  \\ b\"", "a b"),
    ] {
        let configuration = clean(&with(&format!("jobParameter: {written}\nmisfire: on\n")));
        assert_eq!(configuration.job_parameter, text, "{written}");
        assert!(configuration.misfire);
        assert_eq!(clean(&write(&configuration)), configuration);
    }
}

#[test]
fn folded_and_quoted_lines_of_java_are_read() {
    let folded = "cron: '* * * * * ?'
description: some words that are longer than eighty columns are folded by Java onto further
  lines, with two spaces
  each
jobName: demoJob
jobParameter: |-
  first
    second: third
props: {a: b, \"c\":\"d\"}
shardingTotalCount: 0x3
";
    let configuration = clean(folded);
    assert_eq!(configuration.cron.as_deref(), Some("* * * * * ?"));
    assert!(configuration.description.ends_with("further lines, with two spaces each"));
    assert_eq!(configuration.job_parameter, "first\n  second: third");
    assert_eq!(configuration.props["c"], "d");
    assert_eq!(configuration.sharding_total_count, 3);
}

#[test]
fn a_json_document_is_read() {
    let json = r#"{"jobName":"demoJob","cron":"0/5 * * * * ?","shardingTotalCount":3,"misfire":true,
        "props":{"a":"1","b":2.50},"jobListenerTypes":["A","B"],"label":null}"#;
    let configuration = clean(json);
    assert_eq!(configuration.props["b"], "2.5");
    assert_eq!(configuration.job_listener_types, ["A", "B"]);
    assert_eq!(configuration.label, None);
}

#[test]
fn typed_fields_follow_yaml_1_1() {
    let configuration = clean(
        "jobName: 007\nshardingTotalCount: '1_0'\nmisfire: 'on'\nfailover: No\nmaxTimeDiffSeconds: 1:30\n\
         reconcileIntervalMinutes: 012\ncron: ''\n",
    );
    assert_eq!(configuration.job_name.as_str(), "007");
    assert_eq!(configuration.sharding_total_count, 10);
    assert_eq!((configuration.misfire, configuration.failover), (true, false));
    assert_eq!(configuration.max_time_diff_seconds, 90);
    assert_eq!(configuration.reconcile_interval_minutes, 10);
    assert_eq!(configuration.cron, None);
}

#[test]
fn props_have_the_values_that_java_reads() {
    let parsed = read(&with(
        "props:\n  a: 0123\n  b: yes\n  c: 1.50\n  d: '0123'\n  e: !!str 0123\n  f: !!int '0123'\n  g: 2024-01-31\n  \
         h: ''\n  '1': x\n  a b: |-\n    0123\n",
    ));
    let expected = [
        ("1", "x"),
        ("a", "83"),
        ("a b", "0123"),
        ("b", "true"),
        ("c", "1.5"),
        ("d", "0123"),
        ("e", "0123"),
        ("f", "83"),
        ("g", "2024-01-31"),
        ("h", ""),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(parsed.configuration.props, BTreeMap::from(expected));
    expect![[r#"
        [
            "`props[g]` looks like a date, which each Java peer prints in its own locale and time zone; quote it",
        ]
    "#]]
    .assert_debug_eq(&parsed.problems);
}

#[test]
fn the_last_of_several_keys_wins_and_unknown_keys_are_reported() {
    let parsed =
        read(&with("jobParameter: a\njobParameter: b\njobClass: x\njobExecutorServiceHandlerType: y\n"));
    assert_eq!(parsed.configuration.job_parameter, "b");
    expect![[r#"
        [
            "the key `jobClass` is unknown; Java peers throw at each read of this configuration; remove it",
            "the key `jobExecutorServiceHandlerType` is unknown; Java peers throw at each read of this configuration; remove it",
        ]
    "#]]
    .assert_debug_eq(&parsed.problems);
}

#[test]
fn the_number_of_reported_problems_is_bounded() {
    let unknown: String = (0..40_000).map(|n| format!("unknown{n}: x\n")).collect();
    let problems = read(&with(&unknown)).problems;
    assert_eq!(problems.len(), 51);
    assert_eq!(problems[50], "there are more problems than these");

    let properties: String = (0..40_000).map(|n| format!("  {n}: x\n")).collect();
    let Err(ConfigProblem::Fields(errors)) = parse(with(&format!("props:\n{properties}")).as_bytes()) else {
        panic!()
    };
    assert_eq!(errors.len(), 50);
}

#[test]
fn all_fields_that_java_refuses_are_named() {
    refused(
        "disabled: null\nmisfire: 2\nmaxTimeDiffSeconds: 08\nreconcileIntervalMinutes: 2147483648\nprops: {1: a, b: ~, \
         c: [x]}\njobListenerTypes: LOG\nlabel: {}\ndescription: !!java.util.Date x\noverwrite: ~\n<<: {a: b}\n",
        &expect![
            "description: given `a value tagged tag:yaml.org,2002:java.util.Date`; allowed: a value without a tag; <<: given `a merge key`; allowed: keys written out, without merge keys; jobName: given `nothing`; allowed: the job's name, a text of 1 to 200 bytes; it is required; shardingTotalCount: given `nothing`; allowed: an integer from 1 to 10000; it is required; misfire: given `2`; allowed: `true` or `false`; maxTimeDiffSeconds: given `08`; allowed: a 32-bit integer; reconcileIntervalMinutes: given `2147483648`; allowed: a 32-bit integer; jobListenerTypes: given `a text`; allowed: a list of texts; props: given `the key 1`; allowed: keys that are texts; quote it; props[b]: given `null`; allowed: a text; write '' for an empty one; props[c]: given `a list`; allowed: a text; label: given `a map`; allowed: a text; disabled: given `null`; allowed: `true` or `false`; overwrite: given `~`; allowed: `true` or `false`"
        ],
    );
    refused(
        "[]",
        &expect!["configuration: given `a list`; allowed: a map with the keys of a job configuration"],
    );
    refused(
        "",
        &expect![
            "the configuration is not a YAML document: line 1, column 1: the document is empty; it must be a map"
        ],
    );
    for total in ["0", "-1", "10001", "1.0", "~", "99999999999999999999999999999999999999999"] {
        let text = format!("jobName: a\nshardingTotalCount: {total}\n");
        let Err(ConfigProblem::Fields(errors)) = parse(text.as_bytes()) else { panic!("{text}") };
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].field, "shardingTotalCount");
    }
}

const TRACING: &str = "jobExtraConfigurations:
- !!org.apache.shardingsphere.elasticjob.kernel.tracing.yaml.YamlTracingConfiguration
  tracingStorageConfiguration: !!org.apache.shardingsphere.elasticjob.tracing.rdb.yaml.YamlDataSourceConfiguration
    dataSourceClassName: com.zaxxer.hikari.HikariDataSource
    props:   {password: \"p\u{e4}ss\", url: 'jdbc:h2:mem:x'}   # keep
  type: RDB

";

#[test]
fn extra_configurations_are_kept_byte_for_byte() {
    for before in ["", "description: \u{1F600}\n", "---\n"] {
        for after in
            ["jobName: demoJob\nshardingTotalCount: 3\n", "? jobName\n: demoJob\nshardingTotalCount: 3\n"]
        {
            let configuration = clean(&format!("{before}{TRACING}{after}"));
            assert_eq!(configuration.job_extra_configurations, TRACING);
            assert!(write(&configuration).contains(TRACING));
            assert_eq!(clean(&write(&configuration)), configuration);
        }
    }
    for end in ["", "...\n", "# end\n"] {
        let configuration = clean(&format!("jobName: demoJob\nshardingTotalCount: 3\n{TRACING}{end}"));
        let kept = configuration.job_extra_configurations.trim_end_matches("# end\n");
        assert_eq!(kept, TRACING);
        assert_eq!(clean(&write(&configuration)), configuration);
    }
    let unfinished = format!("jobName: demoJob\nshardingTotalCount: 3\n{}", TRACING.trim_end());
    assert_eq!(clean(&unfinished).job_extra_configurations, TRACING.trim_end().to_owned() + "\n");
}

#[test]
fn extra_configurations_of_indented_and_flow_maps_are_kept_in_meaning() {
    let indented: String = format!("jobName: demoJob\nshardingTotalCount: 3\n{TRACING}")
        .lines()
        .map(|line| format!("  {line}\n"))
        .collect();
    assert_eq!(clean(&indented).job_extra_configurations, TRACING.trim_end().to_owned() + "\n\n");

    let flow = "{\"jobExtraConfigurations\": [\n!!a.B {\"c\": 'd\n\n  e'}\n], jobName: demoJob, shardingTotalCount: 3}";
    let configuration = clean(flow);
    assert_eq!(
        configuration.job_extra_configurations,
        "\"jobExtraConfigurations\": [\n !!a.B {\"c\": 'd\n \n   e'}\n ]\n"
    );
    assert_eq!(clean(&write(&configuration)), configuration);

    assert_eq!(clean(&with("jobExtraConfigurations: []\n")).job_extra_configurations, "");
    refused(
        "jobName: a\nshardingTotalCount: 3\nlabel: &x y\njobExtraConfigurations:\n- *x\n",
        &expect![
            "jobExtraConfigurations: given `a list`; allowed: entries that need no anchor or directive from elsewhere in the document"
        ],
    );
    refused(
        &with("jobExtraConfigurations: ~\n"),
        &expect!["jobExtraConfigurations: given `null`; allowed: a list of tagged maps"],
    );
}

#[test]
fn a_strategy_of_sidekeeper_is_never_written_to_the_key_that_java_reads() {
    let mut configuration = JobConfiguration::new(JobName::parse("demoJob").unwrap(), 3);
    configuration.job_sharding_strategy_type = Some("consistent_hash".to_owned());
    move_own_strategy(&mut configuration);
    let read = clean(&write(&configuration));
    assert_eq!(read.job_sharding_strategy_type, None);
    assert_eq!(read.props["sidekeeper.sharding-strategy"], "CONSISTENT_HASH");
}

/// xorshift64*: a failure can be repeated with its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next()).unwrap() % limit
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 0
    }

    fn text(&mut self) -> String {
        const PIECES: [&str; 36] = [
            "a",
            "0123",
            " ",
            "'",
            "\"",
            "\\",
            ":",
            ": ",
            " #",
            "#",
            "\n",
            "\r\n",
            "\t",
            "- ",
            "? ",
            "*",
            "&",
            "!",
            "%",
            "@",
            "`",
            "{",
            "}",
            "[",
            "]",
            ",",
            "|",
            ">",
            "~",
            "null",
            "\u{4e2d}",
            "\u{1F600}",
            "\u{85}",
            "\u{2028}",
            "\u{FEFF}",
            "\u{1}",
        ];
        let count = self.below(8);
        (0..count).map(|_| PIECES[self.below(PIECES.len())]).collect()
    }

    fn optional(&mut self) -> Option<String> {
        self.flag().then(|| self.text())
    }

    fn configuration(&mut self) -> JobConfiguration {
        let total = u32::try_from(self.below(10_000) + 1).unwrap();
        let name = ["demoJob", "007", "~", "it's", "\u{4e2d}\u{6587}", "a: b #c", "- x"][self.below(7)];
        let mut configuration = JobConfiguration::new(JobName::parse(name).unwrap(), total);
        configuration.cron = self.optional().filter(|cron| !cron.is_empty());
        configuration.time_zone = self.optional();
        configuration.sharding_item_parameters = self.text();
        configuration.job_parameter = self.text().repeat(self.below(40));
        configuration.monitor_execution = self.flag();
        configuration.failover = self.flag();
        configuration.misfire = self.flag();
        configuration.max_time_diff_seconds = i32::try_from(self.below(100)).unwrap() - 50;
        configuration.reconcile_interval_minutes = i32::try_from(self.below(100)).unwrap();
        configuration.job_sharding_strategy_type = self.optional();
        configuration.job_executor_thread_pool_size_provider_type = self.optional();
        configuration.job_error_handler_type = self.optional();
        configuration.job_listener_types = (0..self.below(3)).map(|_| self.text()).collect();
        configuration.props = (0..self.below(4)).map(|_| (self.text(), self.text())).collect();
        if self.below(20) == 0 {
            configuration.props.insert("long".repeat(400), self.text());
        }
        configuration.description = self.text();
        configuration.label = self.optional();
        configuration.disabled = self.flag();
        configuration.overwrite = self.flag();
        configuration.static_sharding = self.flag();
        if self.flag() {
            configuration.job_extra_configurations = TRACING.to_owned();
        }
        configuration
    }
}

#[test]
fn a_written_configuration_is_read_back_unchanged() {
    for seed in 1..=2000 {
        let configuration = Random(seed).configuration();
        let written = write(&configuration);
        let parsed =
            parse(written.as_bytes()).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{written}"));
        assert_eq!(parsed.configuration, configuration, "seed {seed}\n{written}");
        assert_eq!(parsed.problems, [""; 0], "seed {seed}\n{written}");
        assert_eq!(write(&parsed.configuration), written, "seed {seed}");
    }
}

/// Documents with random damage are read or refused; a document that is read can be written and read again.
#[test]
fn damaged_documents_are_refused_or_can_be_written_and_read_again() {
    let mut read = 0;
    for seed in 1..=6000 {
        let mut random = Random(seed);
        let mut document = write(&random.configuration()).into_bytes();
        for _ in 0..=random.below(4) {
            let at = random.below(document.len());
            match random.below(4) {
                0 => drop(document.remove(at)),
                1 => document.truncate(at + 1),
                2 => document[at] = u8::try_from(random.below(256)).unwrap(),
                _ => drop(document.splice(at..at, random.text().into_bytes())),
            }
        }
        if let Ok(parsed) = parse(&document) {
            read += 1;
            let again = parse(write(&parsed.configuration).as_bytes())
                .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", write(&parsed.configuration)));
            let written = write(&again.configuration);
            assert_eq!(written, write(&parsed.configuration), "seed {seed}");
        }
    }
    assert!(read > 500, "only {read} documents could be read");
}
