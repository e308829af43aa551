package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
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
		_, err := probe(dir)
		return err
	})
	p := probes(dir)
	defer p.end()
	first := m.service("w")
	_, err = m.consul.Client(m.consul.Management).ACL().TokenDelete(first.GetTokenAccessor(), nil)
	check.NoError(t, err)
	m.Kill()
	m.Start() // which looks after the tokens at once
	m.Eventually("one with another token takes over", func() error {
		if p.of("1 ") == 0 {
			return errors.New("it has not")
		}
		return nil
	})
	second := m.service("w")
	if second.GetTokenAccessor() == first.GetTokenAccessor() {
		t.Error("the token is the same")
	}
	answer, err := probe(dir)
	check.NoError(t, err)
	if !strings.Contains(answer, m.secret(second)) {
		t.Error("the sidecar has not read the new token")
	}
	p.end()
	if len(p.failed) > 0 || p.of("0 ") == 0 {
		t.Errorf("%d probes failed, first by %v; %d were answered by the one before", len(p.failed), p.failed, p.of("0 "))
	}
	check.NoError(t, cmd.Process.Signal(unix.SIGTERM))
	if err := cmd.Wait(); err == nil || err.Error() != "exit status 143" {
		t.Errorf("it ended with %v; output:\n%s", err, &out)
	}
	m.nothingInMesh()
}

// probe returns the answer of the sidecar, whose address is in a file of the directory.
func probe(dir string) (string, error) {
	address, err := os.ReadFile(dir + "/address")
	if err != nil {
		return "", err
	}
	conn, err := net.DialTimeout("tcp", string(address), time.Minute)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	answer, err := io.ReadAll(conn)
	if err == nil && len(answer) == 0 {
		err = errors.New("an empty answer")
	}
	return string(answer), err
}

// probing probes a sidecar again and again.
type probing struct {
	end func()

	mu      sync.Mutex
	answers []string // their first bytes
	failed  []error
}

func probes(dir string) *probing {
	p := &probing{}
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			answer, err := probe(dir)
			p.mu.Lock()
			if err != nil {
				p.failed = append(p.failed, err)
			} else {
				p.answers = append(p.answers, answer[:2])
			}
			p.mu.Unlock()
		}
	})
	p.end = sync.OnceFunc(func() { close(stop); running.Wait() })
	return p
}

// of counts the answers that begin so.
func (p *probing) of(prefix string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.answers {
		if a == prefix {
			n++
		}
	}
	return n
}
