package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	"github.com/pannier/pannier/test/lib/check"
)

// Tests run the test program as another user to make a call.
func TestMain(m *testing.M) {
	if socket := os.Getenv("PANNIER_TEST_CALL"); socket != "" {
		if err := callOnce(socket); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	check.SideBySide(6) // they mostly wait for servers
	goleak.VerifyTestMain(m)
}

// callOnce makes a unary call and a stream.
func callOnce(socket string) error {
	client, err := api.New("unix://" + socket)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = client.Agent.Status(ctx, &hostv1.StatusRequest{})
	stream, streamErr := client.Agent.Events(ctx, &hostv1.EventsRequest{Recent: 1})
	if streamErr == nil {
		for stream.Receive() {
		}
		streamErr = stream.Err()
	}
	if connect.CodeOf(err) != connect.CodeOf(streamErr) {
		return fmt.Errorf("a call: %w; a stream: %w", err, streamErr)
	}
	return err
}

// curl runs curl, as people and scripts do.
func curl(t *testing.T, args ...string) (body string, code string) {
	t.Helper()
	out, err := exec.Command("curl",
		append([]string{"-s", "--max-time", "10", "-w", "\n%{http_code}"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("curl %v: %v: %s", args, err, out)
	}
	text := string(out)
	end := strings.LastIndex(text, "\n")
	return text[:end], text[end+1:]
}

func TestCurl(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl: calls by curl are not covered")
	}
	h := openHost(t)
	h.consul.problems = map[string]string{"default": "", "east": "it is away"}
	args := []string{"--unix-socket", h.cfg.Socket, "-H", "Content-Type: application/json"}
	body, code := curl(t, append(args, "-d", "{}", "http://pannier"+hostv1connect.DriverServiceListDriversProcedure)...)
	var got struct {
		Drivers []struct{ Id, Provider string }
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != "200" ||
		got.Drivers[0].Provider != "fake.example.com" {
		t.Errorf("%s %s: %v", code, body, err)
	}
	body, code = curl(t, append(args, "-d", `{"id":"nothing"}`,
		"http://pannier"+hostv1connect.VolumeServiceGetVolumeProcedure)...)
	if code != "404" || !strings.Contains(body, `"code":"not_found"`) || !strings.Contains(body, "nothing") {
		t.Errorf("%s %s", code, body)
	}
	_, code = curl(t, append(args, "-d", `{"unknown_key":1}`,
		"http://pannier"+hostv1connect.VolumeServiceGetVolumeProcedure)...)
	if code != "400" {
		t.Errorf("an unknown key: %s", code)
	}

	for _, where := range [][]string{{"http://" + h.HTTPAddress()}, {"--unix-socket", h.cfg.Socket, "http://pannier"}} {
		at := func(path string) []string {
			return append(append([]string{}, where[:len(where)-1]...), where[len(where)-1]+path)
		}
		if body, code := curl(t, at("/v1/health")...); code != "200" || strings.TrimSpace(body) != `{"status":"ok"}` {
			t.Errorf("health at %v: %s %s", where, code, body)
		}
		body, code := curl(t, at("/v1/metrics")...)
		for _, want := range []string{
			`pannier_api_requests_total{code="not_found",procedure="VolumeService/GetVolume"} 1`,
			`pannier_api_request_duration_seconds_count{procedure="DriverService/ListDrivers"}`,
			`pannier_driver_healthy{driver="fake"} 1`, `pannier_plugin_restarts_total{plugin="csi-bridge"} 2`,
			`pannier_workloads{state="running"} 0`, `pannier_claims{state="taken"} 0`, "pannier_volumes 0",
			"pannier_ledger_leader 1",
			`pannier_consul_in_sync{consul="default"} 1`, `pannier_consul_in_sync{consul="east"} 0`, "pannier_tokens 0",
		} {
			if code != "200" || !strings.Contains(body, want) {
				t.Errorf("the metrics at %v (%s) lack %q", where, code, want)
			}
		}
	}
	// Any local user can connect over TCP, so nothing else is served there.
	_, code = curl(t, "-H", "Content-Type: application/json", "-d", "{}",
		"http://"+h.HTTPAddress()+hostv1connect.DriverServiceListDriversProcedure)
	if code != "404" {
		t.Errorf("the API on TCP answers %s", code)
	}
}

func TestUnhealthy(t *testing.T) {
	h := openHost(t, func(c *parts) { c.Health = func() []string { return []string{"no storage plugin", "no leader"} } })
	resp := check.Must(http.Get("http://" + h.HTTPAddress() + "/v1/health"))(t)
	defer resp.Body.Close()
	body := check.Must(io.ReadAll(resp.Body))(t)
	if resp.StatusCode != http.StatusServiceUnavailable ||
		strings.TrimSpace(string(body)) != `{"status":"unavailable","reasons":["no storage plugin","no leader"]}` {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	http.DefaultClient.CloseIdleConnections()
	s, err := h.client.Agent.Status(h.ctx, &hostv1.StatusRequest{})
	if check.NoError(t, err); s.Ready || s.Message != "no storage plugin; no leader" {
		t.Errorf("%v", s)
	}
}

// The same API by gRPC, over HTTP/2 without TLS, with the peer's credentials.
func TestGRPC(t *testing.T) {
	h := openHost(t)
	conn, err := grpc.NewClient("unix://"+h.cfg.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check.NoError(t, err)
	defer conn.Close()
	var got hostv1.GetDriverResponse
	check.NoError(t, conn.Invoke(h.ctx, hostv1connect.DriverServiceGetDriverProcedure,
		&hostv1.GetDriverRequest{Id: "fake"}, &got))
	if got.Driver.GetProvider() != "fake.example.com" {
		t.Errorf("%v", &got)
	}
	err = conn.Invoke(h.ctx, hostv1connect.VolumeServiceDeleteVolumeProcedure, &hostv1.DeleteVolumeRequest{Id: "nothing"},
		&hostv1.DeleteVolumeResponse{})
	if status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

// callAs calls the agent as another user. The socket's mode is opened, so that the peer's credentials decide.
func callAs(t *testing.T, h *host, uid uint32, groups ...uint32) (ok bool, output string) {
	t.Helper()
	check.NoError(t, os.Chmod(h.cfg.Socket, 0o666))
	for dir := filepath.Dir(h.cfg.Socket); strings.HasPrefix(dir, os.TempDir()) &&
		dir != os.TempDir(); dir = filepath.Dir(dir) {
		check.NoError(t, os.Chmod(dir, 0o755))
	}
	// Tests run the test program as another user to make a call.
	exe := check.Must(os.Executable())(t)
	program := check.Must(os.ReadFile(exe))(t)
	copied := filepath.Join(filepath.Dir(h.cfg.Socket), "child")
	if _, err := os.Stat(copied); err != nil {
		syscall.ForkLock.RLock() // else a child that is being forked has it open, and it cannot be executed
		err := os.WriteFile(copied, program, 0o755)
		syscall.ForkLock.RUnlock()
		check.NoError(t, err)
	}
	cmd := exec.Command(copied)
	cmd.Env = []string{"PANNIER_TEST_CALL=" + h.cfg.Socket, "PATH=" + os.Getenv("PATH")}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 65534, Groups: groups}}
	out, err := cmd.CombinedOutput()
	return err == nil, string(out)
}

func TestWhoMayCall(t *testing.T) {
	needsRoot(t)
	const nobody = 65534
	alone := openHost(t)
	ok, out := callAs(t, alone, nobody)
	for _, want := range []string{"permission_denied", "(uid 65534) may not use this agent's API", "socket_group"} {
		if ok || !strings.Contains(out, want) {
			t.Errorf("another user was not refused with %q:\n%s", want, out)
		}
	}
	if ok, out := callAs(t, alone, 0); !ok {
		t.Errorf("root was refused:\n%s", out)
	}

	const group, gid = "daemon", 1
	shared := openHost(t, func(c *parts) { c.Group = group })
	info, err := os.Stat(shared.cfg.Socket)
	if check.NoError(t, err); info.Sys().(*syscall.Stat_t).Gid != gid {
		t.Errorf("the socket is of group %d", info.Sys().(*syscall.Stat_t).Gid)
	}
	if ok, out := callAs(t, shared, nobody, 7, gid); !ok {
		t.Errorf("a member of the group was refused:\n%s", out)
	}
	many := make([]uint32, 300) // more than the first buffer holds
	for n := range many {
		many[n] = uint32(100000 + n)
	}
	if ok, out := callAs(t, shared, nobody, many...); ok || !strings.Contains(out, `group "daemon"`) {
		t.Errorf("a member of other groups was not refused:\n%s", out)
	}
	if ok, out := callAs(t, shared, nobody, append(many, gid)...); !ok {
		t.Errorf("a member of many groups was refused:\n%s", out)
	}

	a := access{self: nobody, group: -1}
	if err := a.check(call.Peer{UID: nobody}); err != nil {
		t.Errorf("the agent's own user was refused: %v", err)
	}
	if err := a.check(call.Peer{Err: errors.New("lost")}); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a peer that is not known: %v", err)
	}
	if err := a.check(peerOf(t.Context())); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("no peer at all: %v", err)
	}
}

func TestSocket(t *testing.T) {
	h := openHost(t)
	info, err := os.Stat(h.cfg.Socket)
	if check.NoError(t, err); info.Mode().Perm() != 0o660 {
		t.Errorf("the socket has mode %v", info.Mode())
	}
	if info, err := os.Stat(filepath.Dir(h.cfg.Socket)); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("its directory: %v, %v", info.Mode(), err)
	}
	if _, err := listenUnix(h.ctx, handover.NewSockets(nil), h.cfg.Socket, -1); err == nil ||
		!strings.Contains(err.Error(), "another agent already answers") {
		t.Errorf("a second agent: %v", err)
	}
	if _, err := newAccess("no-such-group"); err == nil || !strings.Contains(err.Error(), "groupadd") {
		t.Errorf("a group that is not there: %v", err)
	}
	if a, err := newAccess("0"); err != nil || a.group != 0 {
		t.Errorf("a group by its number: %+v, %v", a, err)
	}

	// An agent that was killed leaves its socket, with nobody listening.
	dead := filepath.Join(t.TempDir(), "dead.sock")
	l := check.Must(net.ListenUnix("unix", &net.UnixAddr{Name: dead}))(t)
	l.SetUnlinkOnClose(false)
	l.Close()
	again, err := listenUnix(h.ctx, handover.NewSockets(nil), dead, -1)
	check.NoError(t, err)
	again.Close()
	file := filepath.Join(t.TempDir(), "file")
	check.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
	_, err = listenUnix(h.ctx, handover.NewSockets(nil), file, -1)
	if err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in the socket's place: %v", err)
	}
}

// A server whose TCP address is taken leaves nothing open.
func TestOpenFails(t *testing.T) {
	h := openHost(t)
	cfg := h.cfg
	cfg.Socket, cfg.HTTPAddress, cfg.Metrics = filepath.Join(t.TempDir(),
		"p.sock"), h.HTTPAddress(), prometheus.NewRegistry()
	s := New(cfg)
	if err := s.Open(h.ctx); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("it opened at another's address: %v", err)
	}
	check.NoError(t, s.Close())
	if _, err := os.Stat(cfg.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// A call that does not end is cancelled by Close, with another error than if the caller cancels it.
func TestCloseCutsOffWhatDoesNotEnd(t *testing.T) {
	h := openHost(t)
	h.create(t, spec("mysql"))
	answered := make(chan error, 1)
	go func() {
		_, err := h.client.Volumes.CreateSnapshot(h.ctx, &hostv1.CreateSnapshotRequest{VolumeId: "mysql", Name: "hangs"})
		answered <- err
	}()
	check.Eventually(t, "the call is at the driver",
		func() bool { return strings.Contains(h.log.String(), "CreateSnapshot") })
	began := time.Now()
	check.NoError(t, h.Close())
	if took := time.Since(began); took < closeGrace {
		t.Errorf("closed after %s", took)
	}
	wantError(t, <-answered, connect.CodeUnavailable, "the agent is stopping")
}
