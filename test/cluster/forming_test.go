package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/testcluster"
	"github.com/pannier/pannier/test/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 3) }

func TestStory(t *testing.T) {
	c := testcluster.Start(t, testcluster.Options{Servers: 3, Nodes: 2})
	n1 := c.Host("node-1")
	t.Log(n1.Run("node", "status"))
	t.Log(n1.Run("server", "members"))
	c.Volume(n1, "v1", "single-node-writer")
	spec := c.Workload(n1, "w1", "v1")
	t.Log(n1.Run("workload", "start", spec))
	t.Log(c.Host("node-2").Run("volume", "status", "v1"))
	c.Leader().Kill()
	c.Leader()
	c.Volume(c.Host("node-2"), "v2", "single-node-writer")
	t.Log(c.Host("node-2").Run("volume", "status"))
	t.Log(n1.Run("workload", "stop", "w1"))
}

// TestHTTPS calls an agent from elsewhere, with a certificate for callers and without.
func TestHTTPS(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t, testcluster.Options{Servers: 1, Nodes: 1})
	c.Cert("cli", "alice")
	call := func(more ...string) (string, error) {
		cmd := exec.Command(c.Hosts[0].Pannier, "node", "status")
		cmd.Env = append(os.Environ(), append(more, "PANNIER_ADDR=https://"+c.Hosts[0].Net.Addr.String()+":7420", "PANNIER_CACERT="+filepath.Join(c.Dir, "ca.pem"), "PANNIER_TLS_SERVER_NAME=server.dc1.pannier")...)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		err := c.Hosts[1].Net.Do(cmd.Start)
		if err == nil {
			err = cmd.Wait()
		}
		return out.String(), err
	}
	out, err := call("PANNIER_CLIENT_CERT="+filepath.Join(c.Dir, "dc1-cli-alice.pem"), "PANNIER_CLIENT_KEY="+filepath.Join(c.Dir, "dc1-cli-alice-key.pem"))
	if err != nil || !strings.Contains(out, "node-1") {
		t.Errorf("with a certificate: %v\n%s", err, out)
	}
	if out, err := call(); err == nil || !strings.Contains(out, "PANNIER_CLIENT_CERT") {
		t.Errorf("without one: %v\n%s", err, out)
	}
}
