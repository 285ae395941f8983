//! Transfers that GSI authenticates, with a certificate authority of the test.

use crate::{Channel, Site, same, succeeded};
use motet_tests::programs::is_root;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Makes a certificate authority, and certificates of a user and of the host, in the site's folder.
const CERTIFICATES: &str = r#"set -eu; mkdir ca
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 3 -subj /O=Test/CN=CA 2>/dev/null
hash=$(openssl x509 -hash -noout -in ca.pem); cp ca.pem ca/$hash.0
printf "access_id_CA X509 '/O=Test/CN=CA'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Test/*\"'\n" > ca/$hash.signing_policy
for name in user localhost; do
    openssl req -newkey rsa:2048 -nodes -keyout $name.key -out $name.csr -subj /O=Test/CN=$name 2>/dev/null
    openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 3 -out $name.pem 2>/dev/null
    chmod 600 $name.key
done
echo "\"/O=Test/CN=user\" $(id -un)" > gridmap"#;

/// A site with certificates, whose programs are the user's.
pub fn secure(test: &str) -> Option<Site> {
    let mut site = Site::new(test)?;
    succeeded(&site.command("sh").args(["-c", CERTIFICATES]).output().expect("sh"));
    let path = |name: &str| site.path(name).display().to_string();
    let variables = [
        ("X509_CERT_DIR", "ca"),
        ("GRIDMAP", "gridmap"),
        ("X509_USER_CERT", "user.pem"),
        ("X509_USER_KEY", "user.key"),
    ];
    site.environment = variables.map(|(name, file)| (name.to_owned(), path(file))).into();
    Some(site)
}

fn serve(site: &Site) -> crate::Server {
    let mut command = site.command("globus-gridftp-server");
    command.env("X509_USER_CERT", site.path("localhost.pem")).env("X509_USER_KEY", site.path("localhost.key"));
    site.serve_with(command, Channel::Motet, &[])
}

#[test]
fn authenticated_transfers_stay_authenticated_at_every_level_of_protection() {
    let Some(site) = secure("GSI") else { return };
    let servers = [serve(&site), serve(&site)];
    let source = site.file("source", 6 << 20);
    for words in [&[][..], &["-dcsafe"], &["-dcpriv"], &["-dcpriv", "-p", "3"], &["-nodcau"]] {
        let target = site.path("out/target");
        let [from, to] = [(&servers[0], &source), (&servers[1], &target)]
            .map(|(server, file)| format!("gsiftp://localhost:{}{}", server.port, file.display()));
        site.copy(&[words, &[&from, &to]].concat());
        assert!(same(&source, &target), "{words:?}");
        fs::remove_file(target).expect("the copy");
    }
}

#[test]
fn a_user_without_a_certificate_is_turned_away() {
    let Some(mut site) = secure("GSI without a certificate") else { return };
    let server = serve(&site);
    let source = site.file("source", 1000);
    fs::set_permissions(&source, fs::Permissions::from_mode(0o644)).expect("its mode");
    // A certificate of no known authority.
    let forged = "openssl req -x509 -newkey rsa:2048 -nodes -keyout forged.key -out forged.pem -days 3 -subj /O=Test/CN=user 2>/dev/null; chmod 600 forged.key";
    succeeded(&site.command("sh").args(["-c", forged]).output().expect("sh"));
    site.environment.push(("X509_USER_CERT".to_owned(), site.path("forged.pem").display().to_string()));
    site.environment.push(("X509_USER_KEY".to_owned(), site.path("forged.key").display().to_string()));
    let url = format!("gsiftp://localhost:{}{}", server.port, source.display());
    let target = site.path("out/target");
    let output = site.copy_command(&[&url, &format!("file://{}", target.display())]).output().expect("globus-url-copy");
    assert!(!output.status.success(), "a forged certificate was accepted{}", if is_root() { " (as root)" } else { "" });
    assert_eq!(fs::metadata(&target).map_or(0, |data| data.len()), 0, "bytes arrived");
}
