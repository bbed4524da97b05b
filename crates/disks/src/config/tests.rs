use mainstay_host::{Class, Contents, Partition, Signature};

use super::*;

fn disk() -> Disk {
    Disk {
        path: "/dev/sdb".to_owned(),
        vendor: "ACME ".to_owned(),
        model: "Disk 3000".to_owned(),
        bus_path: "pci-0000:00:1f.2-ata-3".to_owned(),
        drive: Drive::Ssd,
        size: 100 << 30,
        ..Disk::default()
    }
}

fn part(label: &str, kind: &str) -> Partition {
    Partition { label: label.to_owned(), kind: kind.to_owned(), ..Partition::default() }
}

fn config(filters: &str, auto: &str) -> Config {
    let data = [("filters.yaml", filters), ("autoprovision.yaml", auto)];
    let data = data.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let (config, errors) = Config::read(&data, &Config::default());
    assert!(errors.is_empty(), "{errors:?}");
    config
}

#[test]
fn every_condition_of_a_filter_excludes_disks() {
    let labelled = |label: &str| {
        let found = Signature {
            class: Class::Filesystem,
            name: "ext4".to_owned(),
            uuid: String::new(),
            label: label.to_owned(),
            offset: 0,
        };
        Disk { contents: Contents { signatures: vec![found], ..Contents::default() }, ..disk() }
    };
    let parts = |parts: &[Partition]| Disk { partitions: parts.to_vec(), ..disk() };
    let cases: Vec<(&str, Disk, &[&str], bool)> = vec![
        ("[]", disk(), &[], false),
        ("[{hostname: '*', excludeDevices: ['/dev/sd[a-c]']}]", disk(), &[], true),
        ("[{hostname: 'n2', excludeDevices: ['/dev/sd[a-c]']}]", disk(), &[], false),
        ("[{excludeDevices: ['/dev/sd[a-c]']}]", disk(), &[], false),
        ("[{hostname: 'n*', vendors: [acme]}]", disk(), &[], true),
        ("[{hostname: '*', vendors: ['disk 3000']}]", disk(), &[], true),
        ("[{hostname: '*', vendors: ['ata-3']}]", disk(), &[], true),
        ("[{hostname: '*', vendors: ['acm']}]", disk(), &[], false),
        ("[{hostname: '*', models: ['Disk*']}]", disk(), &[], true),
        ("[{hostname: '*', paths: [/data]}]", disk(), &["/data"], true),
        ("[{hostname: '*', paths: [/data]}]", disk(), &["/data/x"], false),
        ("[]", disk(), &["/"], true),
        ("[{hostname: '*', labels: ['COS_*']}]", labelled("COS_OEM"), &[], true),
        ("[{hostname: '*', labels: ['COS_*']}]", labelled("DATA"), &[], false),
        ("[{hostname: '*', labels: ['C*']}]", parts(&[part("C1", ""), part("C2", "")]), &[], true),
        ("[{hostname: '*', labels: ['C*']}]", parts(&[part("C1", ""), part("D", "")]), &[], false),
        ("[]", parts(&[part("", ""), part("", BIOS_BOOT)]), &[], true),
        ("[{hostname: '*', types: [ssd]}]", disk(), &[], true),
        ("[{hostname: '*', excludeSmallerThan: 200Gi}]", disk(), &[], true),
        ("[{hostname: '*', excludeLargerThan: 200Gi}]", disk(), &[], false),
        ("[]", Disk { drive: Drive::Odd, ..disk() }, &[], true),
        ("[]", Disk { vendor: "Longhorn".to_owned(), ..disk() }, &[], true),
        ("[{hostname: '*', devices: ['[']}]", disk(), &[], false),
    ];
    for (filters, disk, mounts, expected) in cases {
        let mounts: Vec<_> = mounts.iter().map(|point| (*point).to_owned()).collect();
        let why = config(filters, "").excludes("n1", &disk, &mounts);
        assert_eq!(why.is_some(), expected, "{filters} {disk:?}: {why:?}");
    }
}

#[test]
fn auto_provisioning_takes_disks_that_meet_every_condition() {
    let cases = [
        ("[]", false),
        ("[{hostname: '*'}]", false),
        ("[{hostname: '*', devices: ['/dev/sd*']}]", true),
        ("[{hostname: 'n2', devices: ['/dev/sd*']}]", false),
        ("[{hostname: '*', devices: ['/dev/sd*'], types: [HDD]}]", false),
        ("[{hostname: '*', models: ['Disk *'], minSize: 10Gi, maxSize: 200Gi}]", true),
        ("[{hostname: '*', minSize: 200Gi}]", false),
        ("[{hostname: '*', devices: ['[']}]", false),
        ("[{hostname: '*', devices: [/dev/sdb], provisioner: {lvm: {vgName: a}}}]", true),
    ];
    for (auto, expected) in cases {
        assert_eq!(config("", auto).takes("n1", &disk()).is_some(), expected, "{auto}");
    }
    let mut paused = config("", "[{hostname: '*', devices: ['*']}]");
    assert!(paused.takes("n1", &disk()).is_some());
    paused.paused = true;
    assert!(paused.takes("n1", &disk()).is_none());
}

#[test]
fn a_missing_value_is_the_default_and_an_invalid_one_leaves_the_previous_one() {
    let defaults =
        config("[{hostname: '*', devices: [/dev/sdx]}]", "[{hostname: '*', devices: [a]}]");
    let previous = Config {
        paused: true,
        ..config("[{hostname: '*', devices: [/dev/sdy]}]", "[{hostname: '*', devices: [b]}]")
    };
    let read = |key: &str, text: &str| {
        let data = [(key.to_owned(), text.to_owned())].into();
        let (config, errors) = Config::update(&data, &defaults, &previous);
        (config, errors.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    for text in ["", "  \n"] {
        assert_eq!(read("filters.yaml", text), (defaults.clone(), vec![]), "{text:?}");
    }
    for text in ["- {", "[{hostnames: '*'}]", "7"] {
        let (config, errors) = read("filters.yaml", text);
        let expected = Config { filters: previous.filters.clone(), ..defaults.clone() };
        assert_eq!(config, expected, "{text:?}");
        assert!(errors[0].starts_with("filters.yaml is invalid: "), "{errors:?}");
    }
    let (config, errors) = read("upgrade-running", "maybe");
    assert_eq!(config, Config { paused: true, ..defaults.clone() });
    assert_eq!(errors, ["upgrade-running is invalid: \"maybe\" is neither true nor false"]);
    assert_eq!(read("filters.yaml", "[]").0.filters, []);
    assert_eq!(Config::update(&BTreeMap::new(), &defaults, &previous).0, defaults);
}
