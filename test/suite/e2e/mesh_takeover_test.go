package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/takeover/probes"
	"github.com/pannier/pannier/test/lib/testbin"
)

// takesOver is a workload whose sidecar takes over from itself, as Envoy does.
const takesOver = `
  exec {
    command = "/bin/sleep"
    args    = ["600"]
    user    = "%[2]s"
  }
  sidecar {
    command = ["%[1]s/takeover", "-c", "${bootstrap}", "-base-id", "${base_id}", "-restart-epoch", "${restart_epoch}", "-address", "%[1]s/address"]
  }`

// A token that is replaced costs no failed probe of a sidecar that can take over from itself.
func TestMeshTokenIsReplacedWithoutAFailedProbe(t *testing.T) {
	t.Parallel()
	m := newMesh(t, minted, "")
	m.open()
	dir := m.Path("beside")
	address := dir + "/address"
	check.NoError(t, os.Mkdir(dir, 0o777))
	check.NoError(t, errors.Join(os.Chmod(dir, 0o777), os.Chmod(m.Dir, 0o711)))
	program, err := os.ReadFile(testbin.Build(t, "test/lib/takeover"))
	check.NoError(t, err)
	check.NoError(t, os.WriteFile(dir+"/takeover", program, 0o755))

	cmd := m.Command("workload", "run", m.meshWorkload("w", sidecarService("web", "")+fmt.Sprintf(takesOver, dir, secretsUser)))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	check.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	m.Eventually("the sidecar answers", func() error {
		_, err := probes.Probe(address)
		return err
	})
	p := probes.Start(address, time.Millisecond)
	defer p.End()
	first := m.service("w")
	_, err = m.consul.Client(m.consul.Management).ACL().TokenDelete(first.GetTokenAccessor(), nil)
	check.NoError(t, err)
	m.Kill()
	m.Start() // which looks after the tokens at once
	m.Eventually("one with another token takes over", func() error {
		if p.Answered("1 ") == 0 {
			return errors.New("it has not")
		}
		return nil
	})
	second := m.service("w")
	if second.GetTokenAccessor() == first.GetTokenAccessor() {
		t.Error("the token is the same")
	}
	var answer string
	m.Eventually("it answers, and not the one before, which may do so until it ends", func() (err error) {
		if answer, err = probes.Probe(address); err == nil && !strings.HasPrefix(answer, "1 ") {
			err = fmt.Errorf("the answer is %q", answer)
		}
		return err
	})
	if !strings.Contains(answer, m.secret(second)) {
		t.Error("the sidecar has not read the new token")
	}
	p.End()
	if failed := p.Failed(); len(failed) > 0 || p.Answered("0 ") == 0 {
		t.Errorf("%d probes failed, by %v; %d were answered by the one before", len(failed), failed, p.Answered("0 "))
	}
	check.NoError(t, cmd.Process.Signal(unix.SIGTERM))
	if err := cmd.Wait(); err == nil || err.Error() != "exit status 143" {
		t.Errorf("it ended with %v; output:\n%s", err, &out)
	}
	m.nothingInMesh()
}
