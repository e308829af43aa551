package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
)

// The files with the host's own tokens cannot be read. A start that needs them reports the file, and is undone without
// them: nothing was made in Consul.
func TestMeshHostsTokenFilesAreUnreadable(t *testing.T) {
	t.Parallel()
	m := newFaultyMesh(t, consul.Options{}, minted, "", testhost.LocalDriver(t))
	m.open()
	volume(m.Host, drivers[0], "data", "single-node-writer", "")
	spec := m.faultyWorkload("w")
	for name, path := range map[string]string{"node's": m.nodeFile, "sids'": m.aclFile} {
		for how, spoil := range map[string]func() error{
			"gone":     func() error { return nil },
			"a folder": func() error { return os.Mkdir(path, 0o700) },
			"empty":    func() error { return os.WriteFile(path, nil, 0o600) },
			"a loop":   func() error { return os.Symlink(path, path) },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				m.in(t)
				aside := path + ".aside"
				must(t, os.Rename(path, aside))
				must(t, spoil())
				m.Refused(4, []string{path, "was undone"}, "workload", "start", spec)
				must(t, os.RemoveAll(path))
				must(t, os.Rename(aside, path))
				m.nothingAtAll()
			})
		}
	}
	m.works(spec)
}

// A workload's token file is replaced, for example by a link. The target of a link is not read, written or
// removed, and after a restart the file is restored.
func TestMeshTokenFileIsReplaced(t *testing.T) {
	eachFaultyMode(t, "", func(t *testing.T, m *faultyMesh, spec string) {
		other := m.Write("other", "not a token")
		for name, replace := range map[string]func(path string) error{
			"by a link":         func(path string) error { return os.Symlink(other, path) },
			"by a hard link":    func(path string) error { return os.Link(elsewhere(t, m), path) },
			"by another's file": func(path string) error { return os.WriteFile(path, []byte("x"), 0o666) },
			"by a folder":       func(path string) error { return os.Mkdir(path, 0o700) },
			"by nothing":        func(string) error { return nil },
		} {
			t.Run(name, func(t *testing.T) {
				m.in(t)
				m.Run("workload", "start", spec)
				path := m.service("w").GetTokenFile()
				must(t, os.Remove(path))
				must(t, replace(path))
				if name != "by a folder" {
					m.Kill()
					m.Start()
					m.Eventually("the token is in its file again", func() error {
						s := m.service("w")
						secret, err := os.ReadFile(path)
						if info, statErr := os.Lstat(path); err != nil || statErr != nil || !info.Mode().IsRegular() {
							return errors.Join(fmt.Errorf("it is %v", info), err, statErr)
						}
						file, err := os.ReadFile(s.GetBootstrapFile())
						if err != nil || len(secret) != 36 || !strings.Contains(string(file), string(secret)) {
							return errors.Join(errors.New("the bootstrap does not have the token"), err)
						}
						return nil
					})
					m.Run("token", "sweep")
					m.rightFiles("w")
				}
				m.Run("workload", "stop", spec)
				m.nothingAtAll()
				if content, err := os.ReadFile(other); err != nil || string(content) != "not a token" {
					t.Errorf("the link's target holds %q: %v", content, err)
				}
			})
		}
	})
}

// elsewhere creates a foreign file on the tmpfs of the secrets.
func elsewhere(t *testing.T, m *faultyMesh) string {
	t.Helper()
	path := filepath.Join(m.SecretsDir(), "default", "w", "elsewhere")
	must(t, os.WriteFile(path, []byte("not a token"), 0o600))
	return path
}

// The tmpfs of the secrets is full. A start reports that and leaves nothing. An earlier workload continues,
// and can be released.
func TestMeshSecretsAreFull(t *testing.T) {
	eachFaultyMode(t, "", func(t *testing.T, m *faultyMesh, spec string) {
		m.Run("workload", "start", spec)
		if !slices.Contains(m.Mounts(), m.SecretsDir()) {
			t.Skip(
				"the temporary directory is on a tmpfs, which the host uses as it is: filled up, it would take the memory of the machine. A full tmpfs of the secrets is not covered")
		}
		filler := filepath.Join(m.SecretsDir(), "default", "w", "web", "filler")
		fill(t, filler)
		second := m.meshWorkload("second", sidecarService("api", ""))
		r := m.Try("workload", "start", second)
		if r.Code == 0 || !strings.Contains(r.Stderr, "si_token") || !strings.Contains(r.Stderr, "no space left") {
			t.Errorf("exit code %d:\n%s", r.Code, r.Stderr)
		}
		if left := m.ledgerTokens(); len(left) != 1 {
			t.Errorf("the ledger has the tokens %q", left)
		}
		m.isUp("w")
		must(t, os.Remove(filler))
		m.Run("workload", "start", second)
		m.rightFiles("second")
		m.Run("workload", "stop", second)
		fill(t, filler)
		m.Run("workload", "stop", spec)
		m.nothingAtAll()
	})
}

// fill takes all free space of a file system.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	must(t, err)
	defer f.Close()
	for chunk := make([]byte, 1<<20); len(chunk) > 0; {
		if _, err := f.Write(chunk); err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			chunk = chunk[:len(chunk)/2]
		}
	}
}

// All dynamic ports are taken. A start reports that before its first step, and works when a port is free
// again.
func TestMeshPortsAreExhausted(t *testing.T) {
	t.Parallel()
	m := newFaultyMesh(t, consul.Options{}, minted, "",
		testhost.LocalDriver(t)+"ports {\n  http = 0\n  min_dynamic_port = 31990\n  max_dynamic_port = 31991\n}\n")
	m.open()
	volume(m.Host, drivers[0], "data", "single-node-multi-writer", "")
	ports := func(service string) string { // of the admin API and for readiness
		return strings.Replace(sidecarService(service, ""), "connect {\n", "connect {\n      admin = \"tcp\"\n", 1)
	}
	spec := m.meshWorkload("w", ports("web"))
	m.Run("workload", "start", spec)
	second := m.meshWorkload("second", ports("api"))
	for range 2 {
		r := m.Try("workload", "start", second)
		if r.Code == 0 || !strings.Contains(r.Stderr, "no port is free") {
			t.Errorf("exit code %d:\n%s", r.Code, r.Stderr)
		}
		m.isUp("w") // the other workload has nothing
	}
	m.Kill()
	m.Start() // the allocated ports survive the restart
	if r := m.Try("workload", "start", second); r.Code == 0 || !strings.Contains(r.Stderr, "no port is free") {
		t.Errorf("exit code %d:\n%s", r.Code, r.Stderr)
	}
	m.Run("workload", "stop", spec)
	m.Run("workload", "start", second)
	m.Run("workload", "stop", second)
	m.nothingAtAll()
}
