package cli

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	sealing "filippo.io/age"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/internal/atomicfile"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// An archive is a tar, sealed by age (https://age-encryption.org/v1), of these: the copy of the ledger, and below the
// prefixes the files of the agent's configuration, of its data directory, and others that the configuration names.
const (
	archivedLedger = "ledger.snapshot"
	archivedConfig = "config/"
	archivedData   = "data/"
	archivedOther  = "other"
)

// keptData are the files of a server's data directory that no other server can give it back when all are lost.
var keptData = []string{"node.secret", "secrets.key", "secrets.keys/*"}

// termFile, in the data directory, makes raft begin above a term. (The client does not link raft, which has the name.)
const termFile = "ledger/raft/term"

// laterElections is more than the lost cluster can have had since the archive was written.
const laterElections = 1 << 20

// maxArchived bounds a file of an archive that is held in memory, in bytes.
const maxArchived = 16 << 20

func archiveVerbs() []verb {
	var dir, address, passphrase, identity string
	var recipients []string
	return []verb{
		{
			use: "backup ARCHIVE", short: "Write all that a cluster's recovery needs into one sealed file",
			long: `Write all that a recovery of the cluster needs into one new file: the ledger, the keys of
its secrets, the authority, the gossip key, this server's certificate, secret and configuration.
It is sealed by a passphrase, which is asked for, or for the keys of age (age-keygen). Run it as
root on a server, with a management token.`,
			example: "-recipient age1ql3z… \"pannier-$(date +%F).age\"",
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&dir, "config", config.SystemDir, "the `FOLDER` of the agent's configuration")
				f.StringVar(&passphrase, "passphrase-file", "", "the `FILE` with the passphrase")
				f.StringArrayVar(&recipients, "recipient", nil, "a public `KEY` of age; may be given more than once")
			},
			apart: []string{"passphrase-file recipient"},
			run: func(ctx context.Context, c *call) error {
				to, err := sealers(passphrase, recipients)
				if err != nil {
					return err
				}
				m, err := newMember(c, dir, "")
				if err != nil {
					return err
				}
				return m.backUp(ctx, to)
			},
		},
		{
			use: "recover ARCHIVE", short: "Make this host the first server of a cluster that has lost all of them",
			long: `Make this host the first server of a cluster that has lost all of its servers, by an
archive of pannier operator backup: under the name of the server that wrote it, with its ledger.
Nobody may use volumes meanwhile. Then other servers join as in the first days, and nodes come
back by themselves if the address is the same.`,
			example: "-identity key.txt pannier-2026-01-31.age",
			flags: func(f *pflag.FlagSet) {
				joinFlags(f, &dir, &address)
				f.StringVar(&passphrase, "passphrase-file", "", "the `FILE` with the passphrase")
				f.StringVar(&identity, "identity", "", "the `FILE` with the private key of age")
			},
			apart: []string{"passphrase-file identity"},
			local: func(ctx context.Context, c *call) error {
				by, err := openers(passphrase, identity)
				if err != nil {
					return err
				}
				m, err := newMember(c, dir, address)
				if err != nil {
					return err
				}
				return m.recover(ctx, by)
			},
		},
	}
}

func sealers(passphraseFile string, recipients []string) (to []sealing.Recipient, err error) {
	for _, text := range recipients {
		r, err := sealing.ParseX25519Recipient(text)
		if err != nil {
			return nil, Usage("-recipient %s: %w", text, err)
		}
		to = append(to, r)
	}
	if len(to) > 0 {
		return to, nil
	}
	secret, err := passphrase(passphraseFile, true)
	if err != nil {
		return nil, err
	}
	r, err := sealing.NewScryptRecipient(secret)
	return []sealing.Recipient{r}, err
}

func openers(passphraseFile, identityFile string) (by []sealing.Identity, err error) {
	if identityFile != "" {
		text, err := os.ReadFile(identityFile)
		if err == nil {
			by, err = sealing.ParseIdentities(bytes.NewReader(text))
		}
		if err != nil {
			return nil, Usage("-identity: %w", err)
		}
		return by, nil
	}
	secret, err := passphrase(passphraseFile, false)
	if err != nil {
		return nil, err
	}
	i, err := sealing.NewScryptIdentity(secret)
	return []sealing.Identity{i}, err
}

// passphrase reads it from the first line of a file, or from the terminal, there twice if it is a new one.
func passphrase(file string, fresh bool) (string, error) {
	if file != "" {
		text, err := os.ReadFile(file)
		line, _, _ := strings.Cut(string(text), "\n")
		if err == nil && line == "" {
			err = fmt.Errorf("%s: the first line is empty", file)
		}
		if err != nil {
			return "", Usage("-passphrase-file: %w", err)
		}
		return line, nil
	}
	if !canAsk() {
		return "", Usage("nobody can be asked for the passphrase: give -passphrase-file, or a key of age")
	}
	ask := func(what string) (string, error) {
		fmt.Fprint(os.Stderr, what+": ")
		text, err := term.ReadPassword(int(os.Stdin.Fd()))
		fmt.Fprintln(os.Stderr)
		return string(text), err
	}
	text, err := ask("passphrase")
	if err == nil && fresh {
		var again string
		if again, err = ask("once more"); err == nil && again != text {
			err = Usage("they are not the same")
		}
	}
	if err == nil && text == "" {
		err = Usage("an empty passphrase protects nothing")
	}
	return text, err
}

// backUp writes the archive.
func (m *member) backUp(ctx context.Context, to []sealing.Recipient) error {
	if m.cfg.TLS == nil || !m.cfg.Server.Enabled {
		return refused(errors.New("this host is no server of a cluster: run it on one; a single host has pannier operator snapshot " +
			"save, and the keys of docs/operations/backup.md"))
	}
	files, err := m.kept()
	if err != nil {
		return err
	}
	copied, err := os.CreateTemp(filepath.Dir(m.args[0]), ".ledger-") // 0600
	if err != nil {
		return err
	}
	defer func() {
		_ = copied.Close()
		_ = os.Remove(copied.Name())
	}()
	info, err := copySnapshot(ctx, m.call, copied)
	if err != nil {
		return err
	}
	err = atomicfile.Create(m.args[0], func(f *os.File) error {
		sealed, err := sealing.Encrypt(f, to...)
		if err != nil {
			return err
		}
		t := tar.NewWriter(sealed)
		for name, path := range files {
			if err := addFile(t, name, path); err != nil {
				return err
			}
		}
		if err := addFile(t, archivedLedger, copied.Name()); err != nil {
			return err
		}
		return errors.Join(t.Close(), sealed.Close())
	})
	return m.Done(info, exists(err, m.args[0], "name another file"),
		"wrote %s: the ledger at index %d, and %d files of %s; keep it, and what opens it, off the servers", m.args[0],
		info.GetIndex(), len(files), m.cfg.Name)
}

// kept are the files that an archive has beside the ledger, by their names in it.
func (m *member) kept() (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files[archivedConfig+strings.TrimPrefix(path, m.dir+"/")] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, pattern := range keptData {
		found, err := filepath.Glob(filepath.Join(m.cfg.DataDir, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			files[archivedData+strings.TrimPrefix(path, m.cfg.DataDir+"/")] = path
		}
	}
	_, named := m.cfg.Secrets()
	for _, path := range append(named, m.cfg.TLS.CA, m.cfg.TLS.Cert, m.cfg.TLS.Key, m.cfg.TLS.CAKey) {
		if strings.HasPrefix(path, m.dir+"/") || strings.HasPrefix(path, m.cfg.DataDir+"/") {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			files[archivedOther+path] = path
		}
	}
	return files, nil
}

func addFile(t *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: name, Size: info.Size(), Mode: int64(info.Mode().Perm())}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}

// archived is one file of an archive.
type archived struct {
	data []byte
	mode fs.FileMode
}

// recover makes the host the first server by the archive.
func (m *member) recover(ctx context.Context, by []sealing.Identity) error {
	if m.cfg.TLS != nil {
		return refused(fmt.Errorf("this host is in a cluster already (%s): recover on one that is not", strings.Join(m.cfg.Files(), ", ")))
	}
	single, err := m.singleLedger(ctx)
	if err != nil {
		return err
	}
	if err := m.findAddress(anywhere); err != nil {
		return err
	}
	ledger, err := os.CreateTemp("", "pannier-ledger-") // 0600
	if err != nil {
		return err
	}
	defer func() {
		_ = ledger.Close()
		_ = os.Remove(ledger.Name())
	}()
	files, err := unseal(m.args[0], by, ledger)
	if err != nil {
		return Coded(ExitUsage, fmt.Errorf("%s: %w", m.args[0], err))
	}
	err = m.restart(ctx, func() error {
		if err := m.putAside(single); err != nil {
			return err
		}
		return m.unpack(files)
	})
	if err == nil {
		err = m.awaitReady(ctx, true)
	}
	if err != nil {
		return err
	}
	restored, err := m.restoreFirst(ctx, ledger.Name())
	if err != nil {
		return err
	}
	err = m.restart(ctx, func() error {
		// A key that the new ledger did not name was removed with the first look at it.
		if err := m.unpackData(files); err != nil {
			return err
		}
		term := restored.GetSnapshot().GetTerm() + laterElections
		return atomicfile.WriteFile(filepath.Join(m.cfg.DataDir, termFile), fmt.Append(nil, term))
	})
	if err != nil {
		return err
	}
	if err := m.awaitReady(ctx, true); err != nil {
		return err
	}
	return m.Done(restored, nil, "%s is the first server again, with the ledger at index %d. Next: forget the other servers that "+
		"are lost (pannier node status; pannier node purge NAME), and let new ones join (pannier cluster token create)",
		m.cfg.Name, restored.GetSnapshot().GetIndex())
}

// unseal reads an archive. Its copy of the ledger goes into a file.
func unseal(path string, by []sealing.Identity, ledger io.Writer) (map[string]archived, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	open, err := sealing.Decrypt(bufio.NewReader(f), by...)
	if err != nil {
		return nil, err
	}
	files := map[string]archived{}
	complete := false
	for t := tar.NewReader(open); ; {
		header, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if header.Name == archivedLedger {
			if _, err := io.Copy(ledger, t); err != nil { //nolint:gosec // of one's own archive, which is authenticated
				return nil, err
			}
			complete = true
			continue
		}
		data, err := io.ReadAll(io.LimitReader(t, maxArchived))
		if err != nil {
			return nil, err
		}
		if !filepath.IsLocal(strings.TrimPrefix(header.Name, archivedOther+"/")) {
			return nil, fmt.Errorf("the name %q leads out of the archive", header.Name)
		}
		files[header.Name] = archived{data, fs.FileMode(header.Mode).Perm()}
	}
	if !complete {
		return nil, errors.New("no copy of the ledger is in it")
	}
	return files, nil
}

// unpack writes an archive's files, and makes the host's configuration a first server's.
func (m *member) unpack(files map[string]archived) error {
	for name, f := range files {
		path := strings.TrimPrefix(name, archivedOther)
		if rest, ok := strings.CutPrefix(name, archivedConfig); ok {
			path = m.path(rest)
		} else if strings.HasPrefix(name, archivedData) {
			continue
		}
		if err := putFile(path, f); err != nil {
			return err
		}
	}
	if err := m.load(); err != nil {
		return err
	}
	first := fmt.Sprintf("name       = %q\nbind_addr  = %q\nretry_join = []\n\nserver {\n  bootstrap_expect = 1\n}\n",
		m.cfg.Name, m.address)
	if _, joined := files[archivedConfig+clusterFile]; joined {
		first = m.clusterHCL(acl.JoinServer, m.cfg.Datacenter, nil)
	}
	if err := atomicfile.WriteFile(m.path(clusterFile), []byte(first)); err != nil {
		return err
	}
	if err := m.load(); err != nil {
		return err
	}
	if m.cfg.Server.BootstrapExpect != 1 || len(m.cfg.RetryJoin) > 0 {
		return fmt.Errorf("a file after %s sets retry_join or bootstrap_expect: take both out, and repeat", m.path(clusterFile))
	}
	return m.unpackData(files)
}

func (m *member) unpackData(files map[string]archived) error {
	for name, f := range files {
		if rest, ok := strings.CutPrefix(name, archivedData); ok {
			if err := putFile(filepath.Join(m.cfg.DataDir, rest), f); err != nil {
				return err
			}
		}
	}
	return nil
}

func putFile(path string, f archived) error {
	err := os.MkdirAll(filepath.Dir(path), 0o711) //nolint:gosec // as the agent makes its data directory
	if err == nil {
		err = atomicfile.WriteFile(path, slices.Clone(f.data))
	}
	if err == nil {
		err = os.Chmod(path, f.mode)
	}
	return err
}

// restoreFirst puts a copy of the ledger in place of the empty one that this server has formed.
func (m *member) restoreFirst(ctx context.Context, ledger string) (*hostv1.RestoreSnapshotResponse, error) {
	secret := ""
	if m.cfg.ACL.Enabled {
		var err error
		if secret, err = m.bootstrap(ctx); err != nil { // it is gone with the empty ledger
			return nil, err
		}
	}
	client, err := m.client(secret)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return sendSnapshot(ctx, client, ledger)
}
