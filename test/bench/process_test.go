package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testhost"
)

// agent is a process of a host's agent that is measured.
type agent struct {
	cmd   *exec.Cmd
	ready time.Duration // from exec to health's first 200
}

// startAgent starts the agent and polls its health on its socket, at least every millisecond, until it is
// ready.
func startAgent(b *testing.B, h *testhost.Host) *agent {
	b.Helper()
	cmd, logPath := exec.Command(h.Agent, "-config", h.Path("agent.hcl")), h.Path("agent.log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error,
	) {
		return new(net.Dialer).DialContext(ctx, "unix", h.Socket())
	}}}
	defer client.CloseIdleConnections()
	a := &agent{cmd: cmd}
	a.cmd.Stdout, a.cmd.Stderr = log, log
	at := time.Now()
	if err := a.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { a.end(unix.SIGKILL) })
	for {
		err := healthy(b.Context(), client)
		a.ready = time.Since(at)
		if err == nil {
			return a
		}
		if a.ready > testhost.Wait {
			said, _ := os.ReadFile(logPath)
			b.Fatalf("%v is not ready: %v\n%s", cmd.Args, err, said[max(0, len(said)-4000):])
		}
		time.Sleep(time.Millisecond)
	}
}

func healthy(ctx context.Context, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/v1/health", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, said)
	}
	return err
}

// end ends the process with a signal. It may be called again.
func (a *agent) end(sig unix.Signal) {
	if a.cmd.ProcessState == nil && a.cmd.Process.Signal(sig) == nil {
		_ = a.cmd.Wait()
	}
}
