package security_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 3) }

// password is a secret of a volume. No file may contain it in plain text.
const password = "correct-horse-battery"

// secretVolume registers a volume with a secret.
func secretVolume(t *testing.T, through *testhost.Host, id string) {
	t.Helper()
	spec := through.Write(id+".volume.hcl", fmt.Sprintf(`
id        = %q
type      = "csi"
plugin_id = "shared"
capacity_min = "1MiB"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
secrets {
  password = %q
}
`, id, password))
	through.Run("volume", "create", spec)
	if err := os.Remove(spec); err != nil {
		t.Fatal(err)
	}
}

// keys returns the secrets keys as an operator sees them.
func keys(t *testing.T, h *testhost.Host) []*hostv1.SecretsKey {
	t.Helper()
	resp, err := h.Client().Secrets.GetSecretsStatus(testhost.Soon(t), &hostv1.GetSecretsStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetKeys()
}

// onDisk returns the ids of the keys that a server has on its disk.
func onDisk(t *testing.T, h *testhost.Host) (ids []string) {
	t.Helper()
	entries, err := os.ReadDir(h.Path("data/secrets.keys"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // the server has removed it meanwhile
		}
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("%s of %s has mode %v", e.Name(), h.Name, info.Mode())
		}
		ids = append(ids, strings.TrimSuffix(e.Name(), ".key"))
	}
	return ids
}

// awaitOnly waits until a key is the only one, on all servers and in the ledger, and returns the number of
// secrets that it encrypts.
func awaitOnly(t *testing.T, c *testcluster.Cluster, id string) (sealed int64) {
	t.Helper()
	for _, h := range c.Servers() {
		if !h.Alive() {
			continue
		}
		h.Eventually("the new key is the only one", func() error {
			if got := onDisk(t, h); !slices.Equal(got, []string{id}) {
				return fmt.Errorf("%s has the keys %v, want %s", h.Name, got, id)
			}
			return nil
		})
	}
	c.Hosts[0].Eventually("the new key is the only one in the ledger", func() error {
		all := keys(t, c.Leader())
		if len(all) != 1 || all[0].GetId() != id || !all[0].GetActive() || !all[0].GetHere() {
			return fmt.Errorf("keys are %v, want %s alone", all, id)
		}
		sealed = all[0].GetSealed()
		return nil
	})
	return sealed
}

// rotate rotates the key, and retries while the leader changes.
func rotate(h *testhost.Host) (id string) {
	h.Eventually("the key is changed", func() error {
		r := h.Try("operator", "secrets", "rotate", "-o", "json")
		if r.Code != 0 {
			return errors.New(r.Stderr)
		}
		var resp struct{ ID string }
		err := json.Unmarshal([]byte(r.Stdout), &resp)
		id = resp.ID
		return err
	})
	return id
}

// A key of a cluster is on every server before it is used. A rotation ends with only the new key left, even
// if the leader changes meanwhile. The driver gets the same secrets throughout.
func TestKeysOfACluster(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t, testcluster.Options{Servers: 3, Nodes: 1})
	n := c.Host("node-1")
	first := keys(t, n)[0].GetId()
	awaitOnly(t, c, first)
	for i := range 20 {
		secretVolume(t, n, fmt.Sprintf("v%d", i))
	}
	if sealed := awaitOnly(t, c, first); sealed != 20 {
		t.Fatalf("the key seals %d records", sealed)
	}

	second := rotate(n)
	if second == first {
		t.Fatal("the key is the same")
	}
	if sealed := awaitOnly(t, c, second); sealed != 20 {
		t.Fatalf("the new key seals %d records", sealed)
	}

	down := c.Servers()[0]
	if down == c.Leader() {
		down = c.Servers()[1]
	}
	down.Kill()
	n.Eventually("the change is refused while a server is down", func() error {
		r := n.Try("operator", "secrets", "rotate")
		if r.Code != 1 || !strings.Contains(r.Stderr, down.Name) || !strings.Contains(r.Stderr, "remove-peer") {
			return fmt.Errorf("exit code %d: %s", r.Code, r.Stderr)
		}
		return nil
	})
	down.Launch()

	c.Leader().Kill()
	for _, h := range c.Servers() {
		if !h.Alive() {
			h.Launch()
		}
	}
	third := rotate(n)
	c.Leader().Kill() // the next leader finishes the rotation
	c.Leader()
	for _, h := range c.Servers() {
		if !h.Alive() {
			h.Launch()
		}
	}
	if sealed := awaitOnly(t, c, third); sealed != 20 {
		t.Fatalf("the last key seals %d records", sealed)
	}
	n.Run("workload", "start", c.Workload(n, "w", "v7")) // this decrypts the volume's secrets
	n.Run("workload", "stop", "w")

	backup := n.Path("ledger.snapshot")
	c.Leader().Run("operator", "snapshot", "save", backup)
	nowhere(t, append(files(t, c.Servers()), backup))
}

// files returns all files that the hosts have written.
func files(t *testing.T, hosts []*testhost.Host) (paths []string) {
	t.Helper()
	for _, h := range hosts {
		err := filepath.WalkDir(h.Dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				paths = append(paths, path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// nowhere checks that no file contains a secret in plain text.
func nowhere(t *testing.T, paths []string) {
	t.Helper()
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte(password)) {
			t.Errorf("%s has a secret in plain text", path)
		}
	}
}

// A standalone host has its own key, which becomes the first key of the cluster that the host becomes.
func TestKeysOfAHostThatBecomesACluster(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{Servers: 1})
	h := c.Hosts[0]
	agent, err := os.ReadFile(h.Path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	alone := regexp.MustCompile(`(?s)tls \{.*?\n\}|retry_join[^\n]*|encrypt_file[^\n]*`).ReplaceAll(agent, nil)
	h.Write("agent.hcl", string(alone))
	h.Start()
	secretVolume(t, h, "v")
	own := keys(t, h)[0]
	if info, err := os.Stat(h.Path("data/secrets.key")); err != nil || info.Mode() != 0o600 || !own.GetActive() ||
		own.GetSealed() != 1 {
		t.Fatalf("its own key is %v, %v", own, err)
	}
	h.Stop()

	// With retry_join it would be refused.
	h.Write("agent.hcl", regexp.MustCompile(`(?m)^\s*retry_join.*$`).ReplaceAllString(string(agent), ""))
	h.Start()
	h.Eventually("the ledger names the host's own key", func() error {
		if all := keys(t, h); len(all) != 1 || all[0].GetId() != own.GetId() || all[0].GetAddedAt() == nil {
			return fmt.Errorf("keys are %v", all)
		}
		return nil
	})
	use := func() {
		h.Run("workload", "start", c.Workload(h, "w", "v"))
		h.Run("workload", "stop", "w")
	}
	use()
	changed := rotate(h)
	if sealed := awaitOnly(t, c, changed); sealed != 1 {
		t.Errorf("the new key seals %d records", sealed)
	}
	if _, err := os.Stat(h.Path("data/secrets.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the host's own key is still there: %v", err)
	}
	h.Kill()
	h.Start()
	use()

	// If the file of a needed key is missing, the agent names the key, and uses the file as soon as it is
	// back.
	h.Stop()
	file := h.Path("data/secrets.keys/" + changed + ".key")
	key, err := os.ReadFile(file)
	if err == nil {
		err = os.Remove(file)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Begin()
	h.Eventually("the agent says which key it needs", func() error {
		s, err := h.Status()
		if err == nil && (s.GetReady() || !strings.Contains(s.GetMessage(), changed)) {
			err = fmt.Errorf("it says %q", s.GetMessage())
		}
		return err
	})
	h.Write("data/secrets.keys/"+changed+".key", string(key))
	h.AwaitReady()
	h.AwaitDrivers()
	use()
	nowhere(t, files(t, c.Hosts))
}
