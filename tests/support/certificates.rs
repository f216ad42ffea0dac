//! Authorities, certificates and revocation lists for tests, as PEM files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};

/// An authority, and the folder with the files.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
    name: String,
}

/// A certificate with its key, in files.
#[derive(Clone, Debug)]
pub struct Identity {
    pub cert: PathBuf,
    pub key: PathBuf,
    serial: Vec<u8>,
}

impl Authority {
    pub fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { issuer, folder: folder.to_owned(), name: name.to_owned() };
        fs::write(authority.ca(), authority.issuer.pem()).unwrap();
        authority
    }

    /// The file with its certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.join(format!("{}.pem", self.name))
    }

    /// A certificate for these names and addresses, with this subject.
    pub fn certify(&self, subject: &str, names: &[&str]) -> Identity {
        self.certify_until(subject, names, 2100)
    }

    /// The same, until the beginning of a year.
    pub fn certify_until(&self, subject: &str, names: &[&str], year: i32) -> Identity {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        let serial = uuid::Uuid::new_v4().as_bytes()[..8].to_vec();
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        params.distinguished_name.push(DnType::CommonName, subject);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let place = |end: &str| self.folder.join(format!("{}-{subject}-{year}.{end}", self.name));
        let identity = Identity { cert: place("crt"), key: place("key"), serial };
        fs::write(&identity.cert, certificate.pem()).unwrap();
        fs::write(&identity.key, key.serialize_pem()).unwrap();
        fs::set_permissions(&identity.key, fs::Permissions::from_mode(0o600)).unwrap();
        identity
    }

    /// A revocation list with these certificates, that is in force until the beginning of a year.
    pub fn revoke(&self, revoked: &[&Identity], year: i32) -> PathBuf {
        let revoked_certs = revoked.iter().map(|identity| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&identity.serial),
            revocation_time: date_time_ymd(2021, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2021, 1, 1),
            next_update: date_time_ymd(year, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let place = self.folder.join(format!("{}-{}-{year}.crl", self.name, revoked.len()));
        fs::write(&place, params.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
        place
    }
}
