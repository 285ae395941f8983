//! File servers of other projects, and their clients in user space: Samba, NFS-Ganesha, gluster. Each serves one folder on a port of the loopback interface,
//! to everybody, as root, which the servers need. Their own files are in the folder that the caller names.

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_owned()).collect()
}

/// A configuration of Samba: `share` is `//127.0.0.1/s`; `state` is a folder of root for the server's own files.
pub fn samba_configuration(share: &str, state: &str, port: u16) -> String {
    format!(
        "[global]
        workgroup = TEST
        server role = standalone server
        interfaces = 127.0.0.1
        bind interfaces only = yes
        smb ports = {port}
        private dir = {state}
        state directory = {state}
        cache directory = {state}
        lock directory = {state}
        pid directory = {state}
        ncalrpc dir = {state}/ncalrpc
        log file = {state}/log
        map to guest = Bad User
        guest account = root
        load printers = no
        printing = bsd
        disable spoolss = yes
        disable netbios = yes
        [s]
        path = {share}
        guest ok = yes
        read only = no
        "
    )
}

/// Samba's server with a configuration file. By SIGTERM it ends its process group, so it must be started in one of its own.
pub fn samba(configuration: &str) -> Vec<String> {
    let configuration = format!("--configfile={configuration}");
    words(&["smbd", "--foreground", "--no-process-group", "--debug-stdout", &configuration])
}

/// Samba's client, which executes commands.
pub fn samba_client(configuration: &str, port: u16, commands: &str) -> Vec<String> {
    words(&["smbclient", "//127.0.0.1/s", "-s", configuration, "-p", &port.to_string(), "-N", "-c", commands])
}

/// A configuration of NFS-Ganesha: NFS 4 alone, which needs no port mapper. `state` is a folder for the server's own files. The file system of `export` must have
/// file handles.
pub fn ganesha_configuration(export: &str, state: &str, port: u16) -> String {
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {port}; Protocols = 4; Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}
        NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = {state}; Only_Numeric_Owners = true; }}
        NFS_KRB5 {{ Active_krb5 = false; }}
        EXPORT_DEFAULTS {{ SecType = sys; Squash = No_Root_Squash; Access_Type = RW; Transports = TCP; Protocols = 4; }}
        EXPORT {{ Export_Id = 1; Path = {export}; Pseudo = /e; FSAL {{ Name = VFS; }} }}
        "
    )
}

/// NFS-Ganesha with a configuration file, and files for its log and its number.
pub fn ganesha(configuration: &str, log: &str, process: &str) -> Vec<String> {
    words(&["ganesha.nfsd", "-F", "-N", "EVENT", "-L", log, "-p", process, "-f", configuration])
}

/// A file of that server, for the programs of libnfs: `nfs-cp`, `nfs-cat`, `nfs-ls`. Their library has room for short writes alone.
pub fn nfs_uri(port: u16, name: &str) -> String {
    format!("nfs://127.0.0.1/e{name}?version=4&nfsport={port}")
}

/// A volume file of gluster: a folder (a brick, as gluster says), served by one process. Its file system must have extended attributes of root.
pub fn gluster_server_volume(brick: &str, port: u16) -> String {
    format!(
        "volume posix
  type storage/posix
  option directory {brick}
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address 127.0.0.1
  option transport.socket.listen-port {port}
  option auth.addr.locks.allow 127.0.0.1
  subvolumes locks
end-volume
"
    )
}

/// A volume file of gluster for a client of that folder.
pub fn gluster_client_volume(port: u16) -> String {
    format!(
        "volume client
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port {port}
  option remote-subvolume locks
end-volume
"
    )
}

/// Gluster's server with a volume file. It ends by SIGTERM with the number of the signal as its status.
pub fn gluster_server(volume: &str, log: &str, process: &str) -> Vec<String> {
    words(&["glusterfsd", "--no-daemon", "-f", volume, "-l", log, "-p", process])
}

/// Gluster's client, which mounts a volume and ends when that is unmounted.
pub fn gluster_client(volume: &str, log: &str, process: &str, at: &str) -> Vec<String> {
    words(&["glusterfs", "--no-daemon", "-f", volume, "-l", log, "-p", process, at])
}
