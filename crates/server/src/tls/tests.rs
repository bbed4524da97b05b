use super::*;
use mainstay_store::cache::Retention;
use mainstay_store::clock::ManualClock;
use mainstay_store::memory::MemoryStore;
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn now() -> Timestamp {
    "2026-11-16T12:34:56Z".parse().unwrap()
}

fn sample() -> Authority {
    authority::sample(now())
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

#[test]
fn a_client_certificate_names_its_user_and_group() {
    let pair = sample().client("ada", "editor", DAY, now()).unwrap();
    let user = Presented::read(&der(&pair.certificate)).unwrap().user;
    assert_eq!((&*user.name, user.claims.groups), ("ada", vec!["editor".to_owned()]));
}

#[test]
fn a_node_is_certified_by_its_own_name_whatever_it_asks_for() {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let mut asked = CertificateParams::new(Vec::new()).unwrap();
    asked.distinguished_name.push(DnType::CommonName, "system:node:other");
    asked.distinguished_name.push(DnType::OrganizationName, "system:masters");
    let csr = asked.serialize_request(&key).unwrap().pem().unwrap();
    let (request, serial) = (NodeRequest::read(&csr).unwrap(), serial().unwrap());
    let certificate = sample().node(request, "n1", &serial, now(), SERVER_LIFE).unwrap();
    let shown = Presented::read(&der(&certificate)).unwrap();
    assert_eq!((&*shown.user.name, shown.serial), ("system:node:n1", serial));
    assert_eq!(shown.user.claims.groups, ["system:nodes"]);
    assert!(NodeRequest::read("nonsense").is_err());
}

#[test]
fn a_server_certificate_covers_every_name_and_begins_in_the_past() {
    let names = names("192.0.2.7".parse().unwrap(), &[]);
    let pair = sample().server(&names, now()).unwrap();
    let der = der(&pair.certificate);
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
    let begins = parsed.validity().not_before.timestamp();
    assert_eq!(begins, now().as_second() - authority::SKEW.as_secs() as i64);
    let san = parsed.subject_alternative_name().unwrap().unwrap();
    assert_eq!(san.value.general_names.len(), names.len());
}

async fn tls(clock: Arc<ManualClock>) -> Tls {
    let objects = MemoryStore::new(0, Retention::default(), 1 << 20, clock.clone());
    let certificates = Certificates::load(Arc::new(objects), clock.clone()).await.unwrap();
    Tls::new(Arc::new(sample()), [127, 0, 0, 1].into(), Vec::new(), certificates, clock).unwrap()
}

#[tokio::test]
async fn a_certificate_is_replaced_while_serving_once_a_third_of_its_life_is_left() {
    let clock = ManualClock::new(now());
    let tls = tls(clock.clone()).await;
    let first = tls.current.certified.load_full();
    let mut renewing = Box::pin(tls.keep_fresh(clock.clone()));
    assert!(futures_util::poll!(&mut renewing).is_pending());
    for day in 0..250 {
        clock.advance(DAY);
        tokio::task::yield_now().await;
        assert!(futures_util::poll!(&mut renewing).is_pending());
        let replaced = !Arc::ptr_eq(&first, &tls.current.certified.load_full());
        assert_eq!(replaced, day + 1 >= 244, "after {} days", day + 1);
    }
}

#[tokio::test]
async fn a_handshake_after_a_long_sleep_finds_a_fresh_certificate() {
    let clock = ManualClock::new(now());
    let tls = tls(clock.clone()).await;
    let first = tls.current.key();
    clock.advance(DAY);
    assert!(Arc::ptr_eq(&first, &tls.current.key()));
    // It was not renewed meanwhile.
    clock.advance(SERVER_LIFE);
    let fresh = tls.current.key();
    assert!(!Arc::ptr_eq(&first, &fresh));
    let (_, parsed) = x509_parser::parse_x509_certificate(&fresh.cert[0]).unwrap();
    assert!(parsed.validity().not_after.timestamp() > clock.now().as_second());
}
