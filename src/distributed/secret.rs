//! The secret that the processes of a job share, and the proofs made with it.

use super::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use xtrain_report::files;
use xtrain_report::units::hex;

/// Holds the secret itself, also in the environment of the ranks that a launcher starts.
pub const VARIABLE: &str = "XTRAIN_RDZV_SECRET";

/// Bytes that a secret has at least: fewer could be guessed by trying.
const LEAST: usize = 8;

/// A shared secret. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    pub fn generate() -> Self {
        Secret(hex(&rand::random::<[u8; 32]>()).into_bytes())
    }

    /// From [`VARIABLE`], if it is set.
    pub fn from_environment() -> Result<Option<Self>> {
        Secret::from_variable(VARIABLE)
    }

    /// From this variable, if it is set.
    pub fn from_variable(variable: &str) -> Result<Option<Self>> {
        let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let text = value.to_string_lossy().trim().to_string();
        if text.len() >= LEAST {
            Ok(Some(Secret(text.into_bytes())))
        } else {
            // The value itself is not for logs.
            Err(Error::Environment {
                variable: variable.into(),
                value: "...".into(),
                problem: format!("a secret has at least {LEAST} characters"),
            })
        }
    }

    pub fn from_file(path: &Path) -> Result<Self> {
        let fail = |problem: String| Error::Secret {
            path: path.into(),
            problem,
        };
        let mode = fs::metadata(path).map_err(|e| fail(e.to_string()))?.mode();
        if mode & 0o077 != 0 {
            return Err(fail(format!(
                "readable by other users (mode {:o}); run `chmod 600 {}`",
                mode & 0o777,
                path.display()
            )));
        }
        let text = files::read_piped(path, 1 << 16).map_err(|e| fail(e.to_string()))?;
        let text = String::from_utf8_lossy(&text).trim().to_string();
        if text.len() < LEAST {
            Err(fail(format!("a secret has at least {LEAST} characters")))
        } else {
            Ok(Secret(text.into_bytes()))
        }
    }

    /// The secret that this user's processes share where nobody gave one: made at the first use, in
    /// a file that only they can read.
    pub fn of_user(folder: &Path) -> Result<Self> {
        let path = folder.join("rendezvous-secret");
        if path.exists() {
            return Self::from_file(&path);
        }
        let fail = |e: std::io::Error| Error::Secret {
            path: path.clone(),
            problem: e.to_string(),
        };
        fs::create_dir_all(folder).map_err(fail)?;
        // A temporary file is its owner's alone.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(fail)?;
        file.write_all(&Self::generate().0).map_err(fail)?;
        // Of processes that start together one wins and the others take its secret.
        match file.persist_noclobber(&path) {
            Err(lost) if lost.error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(fail(lost.error))
            }
            _ => Self::from_file(&path),
        }
    }

    /// As the variable of a process that is started.
    pub fn expose(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// Shows that its maker knows the secret; `parts` say what for.
    pub fn proof(&self, parts: &[&str]) -> String {
        hex(&self.mac(parts).finalize().into_bytes())
    }

    /// Whether a proof is right; takes the same time for every wrong one.
    pub fn accepts(&self, proof: &str, parts: &[&str]) -> bool {
        unhex(proof).is_some_and(|bytes| self.mac(parts).verify_slice(&bytes).is_ok())
    }

    /// The key of one connection; `parts` are what its handshake agreed on.
    pub fn session(&self, parts: &[&str]) -> SessionKey {
        let parts = [&["session"], parts].concat();
        SessionKey(self.mac(&parts).finalize().into_bytes().into())
    }

    fn mac(&self, parts: &[&str]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in parts {
            // With lengths, so that no two lists of parts look alike.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part.as_bytes());
        }
        mac
    }
}

/// The key that one connection's messages are authenticated with.
#[derive(Clone)]
pub struct SessionKey([u8; 32]);

impl SessionKey {
    /// The MAC of the message with this number in its direction.
    pub fn tag(&self, from_server: bool, number: u64, body: &[u8]) -> [u8; 32] {
        self.mac(from_server, number, body)
            .finalize()
            .into_bytes()
            .into()
    }

    /// Whether a MAC is right; takes the same time for every wrong one.
    pub fn accepts(&self, tag: &[u8], from_server: bool, number: u64, body: &[u8]) -> bool {
        self.mac(from_server, number, body)
            .verify_slice(tag)
            .is_ok()
    }

    fn mac(&self, from_server: bool, number: u64, body: &[u8]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(&[u8::from(from_server)]);
        mac.update(&number.to_le_bytes());
        mac.update(body);
        mac
    }
}

/// 32 random bytes, as text.
pub fn nonce() -> String {
    hex(&rand::random::<[u8; 32]>())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn proofs_hold_for_their_parts_and_secret_only() {
        let secret = Secret::generate();
        let proof = secret.proof(&["ab", "c"]);
        assert!(secret.accepts(&proof, &["ab", "c"]));
        assert!(!secret.accepts(&proof, &["a", "bc"]));
        assert!(!Secret::generate().accepts(&proof, &["ab", "c"]));
        assert!(!secret.accepts("nonsense", &["ab", "c"]));
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn a_users_secret_is_made_once_and_must_stay_private() {
        let folder = tempfile::tempdir().unwrap();
        let made = Secret::of_user(folder.path()).unwrap();
        assert_eq!(made, Secret::of_user(folder.path()).unwrap());
        let path = folder.path().join("rendezvous-secret");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let problem = Secret::of_user(folder.path()).unwrap_err().to_string();
        assert!(problem.contains("chmod 600"), "{problem}");
    }
}
