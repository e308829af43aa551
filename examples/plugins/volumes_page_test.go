package plugins_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// The example module passes its own tests, run as its author runs them.
func TestVolumesPageTestsItself(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "test", "-count=1", "./...")
	cmd.Dir = "volumes-page"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// door is a host with the volumes page, in Go or in another language.
type door struct {
	*testhost.Host
	t       *testing.T
	name    string
	address string
	program []byte
}

// newDoor prepares a host with ACLs and the page, which may do what the policy volumes-page says.
func newDoor(t *testing.T) *door {
	t.Helper()
	return newDoorOf(t, "volumes-page", testbin.BuildDir(t, "volumes-page"))
}

func newDoorOf(t *testing.T, name, program string) *door {
	t.Helper()
	testbin.RequireRoot(t, "an agent with the example plugin "+name)
	d := &door{t: t, name: name, address: testhost.FreeAddress(t, "127.0.0.1")}
	d.Host = testhost.New(t, fmt.Sprintf(`
acl {
  enabled = true
}
plugin %q {
  listen "http" {
    address = %q
  }
  api {
    policy = "volumes-page"
  }
}
%s`, name, d.address, testhost.LocalDriver(t)))
	d.program = must(os.ReadFile(program))(t)
	install(t, d.Host, name, d.program)
	return d
}

// up starts the agent with a volume, and waits until the page shows it.
func (d *door) up() {
	d.t.Helper()
	d.Start()
	d.Run("acl", "policy", "apply", "volumes-page", "volumes-page/policy.hcl")
	d.Run("volume", "create", d.Write("volume.hcl", volumeSpec))
	d.Eventually("the page has the volume", func() error {
		text, err := d.get(http.DefaultClient)
		if err == nil && !strings.Contains(text, "<td>notes<td>local") {
			err = fmt.Errorf("it is %s", text)
		}
		return err
	})
}

const volumeSpec = `
id        = "notes"
name      = "notes"
type      = "csi"
plugin_id = "local"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`

// get reads the page; an answer other than 200 is an error.
func (d *door) get(client *http.Client) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testhost.Wait)
	defer cancel()
	req := must(http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.address+"/", nil))(d.t)
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, text)
	}
	return string(text), err
}

// load requests the page all the time, over new and over kept connections. end stops that and returns how many requests
// were answered.
func (d *door) load() (end func() int64) {
	var answered atomic.Int64
	var running sync.WaitGroup
	stop := make(chan struct{})
	for n := range 4 {
		running.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: n%2 == 0}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := d.get(client); err != nil {
					d.t.Errorf("request %d: %v", answered.Load(), err)
				}
				answered.Add(1)
			}
		})
	}
	end = sync.OnceValue(func() int64 {
		close(stop)
		running.Wait()
		return answered.Load()
	})
	d.t.Cleanup(func() { end() })
	return end
}

// client is a connection to the page on which requests are written by hand.
type client struct {
	net.Conn
	answers *bufio.Reader
}

// connect opens a connection and makes a request, so that the serving process has accepted it.
func (d *door) connect() *client {
	d.t.Helper()
	conn := must((&net.Dialer{}).DialContext(d.t.Context(), "tcp", d.address))(d.t)
	d.t.Cleanup(func() { _ = conn.Close() })
	must(0, conn.SetDeadline(time.Now().Add(2*testhost.Wait)))(d.t)
	c := &client{conn, bufio.NewReader(conn)}
	must(io.WriteString(c, "GET / HTTP/1.1\r\nHost: page\r\n\r\n"))(d.t)
	must(0, c.answer())(d.t)
	return c
}

// answer reads an answer, which must be 200.
func (c *client) answer() error {
	res, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("the answer is %s", res.Status)
	}
	return err
}

// begin sends a request to the serving process, but for the end of its body, without which there is no answer. finish
// sends that and reads the answer, after the process has closed its idle connections.
func (d *door) begin() (finish func() error) {
	d.t.Helper()
	begun := d.connect()
	must(io.WriteString(begun, "GET / HTTP/1.1\r\nHost: page\r\nContent-Length: 4\r\n\r\n12"))(d.t)
	idle := d.connect()
	return func() error {
		if _, err := idle.answers.ReadByte(); !errors.Is(err, io.EOF) {
			return fmt.Errorf("the idle connection: %w", err)
		}
		if _, err := io.WriteString(begun, "34"); err != nil {
			return err
		}
		return begun.answer()
	}
}

// swap installs another binary, and returns the plugin when that serves.
func (d *door) swap() (now *hostv1.Plugin) {
	d.t.Helper()
	before := plugin(d.t, d.Host, d.name)
	d.program = append(d.program, "\n// another binary\n"...)
	install(d.t, d.Host, d.name, d.program)
	d.Eventually("the page is swapped", func() error {
		if now = plugin(d.t, d.Host, d.name); now.GetSha256() == before.GetSha256() {
			return fmt.Errorf("it is %v", now)
		}
		return nil
	})
	return now
}

// kill ends the serving process. Nobody accepts connections then: a request waits for the next process.
func (d *door) kill() {
	d.t.Helper()
	before := plugin(d.t, d.Host, d.name)
	must(0, syscall.Kill(int(before.GetPid()), syscall.SIGKILL))(d.t)
	if _, err := d.get(&http.Client{Transport: &http.Transport{}}); err != nil {
		d.t.Errorf("a request after the process was killed: %v", err)
	}
	if now := plugin(d.t, d.Host, d.name); now.GetPid() == before.GetPid() {
		d.t.Errorf("the plugin is still %v", now)
	}
}

func TestNoRequestIsLostInSwaps(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	d.up()
	end := d.load()
	for range 5 {
		before := plugin(t, d.Host, "volumes-page")
		finish := d.begin()
		d.swap()
		if err := gone(before); err == nil {
			t.Error("the process that was replaced ended with an open connection")
		}
		if err := finish(); err != nil {
			t.Errorf("a request that the replaced process had begun to read: %v", err)
		}
		d.Eventually("the process that was replaced has ended", func() error { return gone(before) })
	}
	t.Logf("%d requests were answered", end())
	if p := plugin(t, d.Host, "volumes-page"); len(p.GetRefused()) > 0 || len(p.GetSwaps()) != 5 {
		t.Errorf("the plugin is %v", p)
	}
}

func TestASocketOutlivesItsProcesses(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	d.up()
	d.kill()
	d.restart()
	d.underLoad()
	d.kill()
	d.Run("agent", "upgrade") // the agent's next program has the socket too
	d.underLoad()
	d.kill()
	d.stop()
}

// restart lets the next agent take the socket from the process that has it.
func (d *door) restart() {
	d.t.Helper()
	before := plugin(d.t, d.Host, d.name)
	d.Kill()
	d.Start()
	d.Eventually("the next agent has the plugin", func() error {
		now := plugin(d.t, d.Host, d.name)
		if now.GetState() != "running" {
			return fmt.Errorf("it is %v", now)
		}
		if now.GetPid() != before.GetPid() {
			d.t.Fatalf("it is %v instead of %v", now, before)
		}
		return nil
	})
}

// underLoad swaps the plugin while it is asked.
func (d *door) underLoad() {
	d.t.Helper()
	before := plugin(d.t, d.Host, d.name)
	end := d.load()
	d.swap()
	d.t.Logf("%d requests were answered", end())
	d.Eventually("the process that was replaced has ended", func() error { return gone(before) })
}

// stop ends the agent with its plugins, and their sockets.
func (d *door) stop() {
	d.t.Helper()
	d.Run("agent", "stop", "-plugins")
	d.AwaitEnd()
	if _, err := d.get(&http.Client{Transport: &http.Transport{}}); err == nil {
		d.t.Error("somebody still serves the page")
	}
}

func TestAFrontDoorHasItsPolicyOnly(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	d.Start()
	refused := func(says string) {
		t.Helper()
		d.Eventually("the page is refused its volumes", func() error {
			if _, err := d.get(http.DefaultClient); err == nil || !strings.Contains(err.Error(), "502") {
				return fmt.Errorf("the answer is %w", err)
			}
			if log := string(must(os.ReadFile(d.Path("agent.log")))(t)); !strings.Contains(log, says) {
				return fmt.Errorf("the log does not say %q", says)
			}
			return nil
		})
	}
	refused("there is no policy")
	d.Run("acl", "policy", "apply", "volumes-page", d.Write("other.hcl", `namespace "other" { policy = "write" }`))
	d.Run("volume", "create", d.Write("volume.hcl", volumeSpec))
	d.Eventually("the page has no volume of another namespace", func() error {
		text, err := d.get(http.DefaultClient)
		if err == nil && (strings.Contains(text, "notes") || !strings.Contains(text, "There are none")) {
			t.Fatalf("the page is %s", text)
		}
		return err
	})
	d.Run("acl", "policy", "apply", "volumes-page", d.Write("none.hcl", `operator { policy = "read" }`))
	refused("csi-list-volume")
	if list := d.Run("acl", "token", "list"); strings.Count(list, "plugin volumes-page on a") != 1 {
		t.Errorf("the tokens are\n%s", list)
	}
	d.Kill()
	d.Start()
	d.Run("acl", "policy", "apply", "volumes-page", "volumes-page/policy.hcl")
	d.Eventually("the page has the volume", func() error {
		text, err := d.get(http.DefaultClient)
		if err == nil && !strings.Contains(text, "notes") {
			err = fmt.Errorf("it is %s", text)
		}
		return err
	})
	list := d.Run("acl", "token", "list")
	if strings.Count(list, "plugin volumes-page on a") != 1 {
		t.Errorf("the tokens of the next agent are\n%s", list)
	}
	for line := range strings.Lines(list) {
		if strings.Contains(line, "plugin volumes-page on a") {
			d.Run("acl", "token", "delete", strings.Fields(line)[0])
		}
	}
	if text, err := d.get(http.DefaultClient); err != nil || !strings.Contains(text, "notes") {
		t.Errorf("after its token was deleted: %s, %v", text, err)
	}
}

// A changed address is taken over by a reload. If the plugin is not ready then, it goes on as before.
func TestAFrontDoorMoves(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	d.up()
	before, path := plugin(t, d.Host, "volumes-page"), d.Path("page/socket")
	was := string(must(os.ReadFile(d.Path("agent.hcl")))(t))
	moved := strings.Replace(was, `"`+d.address+`"`, `"unix://`+path+`"`, 1)
	d.Write("agent.hcl", strings.Replace(moved, `"unix://`, `"unix:///proc/none`, 1))
	d.Refused(4, []string{"/proc/none"}, "agent", "reload")
	if text, err := d.get(http.DefaultClient); err != nil || !strings.Contains(text, "notes") {
		t.Errorf("after a change that was refused: %s, %v", text, err)
	}
	d.Write("agent.hcl", moved)
	if out := d.Run("agent", "reload"); !strings.Contains(out, "volumes-page") {
		t.Errorf("the reload says %s", out)
	}
	if now := plugin(t, d.Host, "volumes-page"); now.GetPid() == before.GetPid() {
		t.Errorf("the plugin is still %v", now)
	}
	if info := must(os.Stat(path))(t); info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v", info)
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
	defer client.CloseIdleConnections()
	if text, err := d.get(client); err != nil || !strings.Contains(text, "notes") {
		t.Errorf("at the new address: %s, %v", text, err)
	}
}

// A file whose configuration is for a front door, and which is none, does not serve.
func TestOnlyAFrontDoorHasSockets(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	install(t, d.Host, "volumes-page", must(os.ReadFile(testbin.BuildDir(t, "dirs")))(t))
	d.Begin()
	d.AwaitReady()
	d.Eventually("the plugin is refused", func() error {
		p := plugin(t, d.Host, "volumes-page")
		if !strings.Contains(p.GetLastError(), "listen or api") {
			return fmt.Errorf("it is %v", p)
		}
		return nil
	})
	agents := []string{d.Path("api-credentials.sock"), d.Socket()}
	if left := must(filepath.Glob(filepath.Join(d.Dir, "*.sock")))(t); !slices.Equal(left, agents) {
		t.Errorf("the sockets are %q", left)
	}
}
