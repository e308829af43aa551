package apiserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/apiserver/plugins"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/frontend"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// pluginHost is a host with a real supervisor, whose plugin "fixture" is a real process.
type pluginHost struct {
	*host
	t   *testing.T
	dir string // of the plugins

	plugins *supervisor.Supervisor
}

func openPluginHost(t *testing.T) *pluginHost {
	t.Helper()
	base, err := os.MkdirTemp("", "ps") // short: sockets go below it
	check.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	p := &pluginHost{t: t, dir: filepath.Join(base, "plugins")}
	check.NoError(t, os.Mkdir(p.dir, 0o755))
	p.install("fixture", "good", "1.0.0")
	plugins := supervisor.New(supervisor.Config{
		PluginDir: p.dir, DataDir: filepath.Join(base, "data"), Logger: hclog.NewNullLogger(), StopPlugins: true,
		Restart: supervisor.Restart{Min: 20 * time.Millisecond, Max: time.Second},
		Plugins: []supervisor.Plugin{{Name: "fixture", Env: []string{"GORACE=atexit_sleep_ms=0"}}},
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	check.NoError(t, plugins.Open(ctx))
	t.Cleanup(func() { check.NoError(t, plugins.Close()) })
	handle, err := plugins.Acquire(ctx, "fixture")
	check.NoError(t, err)
	handle.Release()
	p.plugins = plugins
	p.host = openHost(t, func(c *parts) { c.Plugins = plugins })
	return p
}

// install puts the supervisor's fixture, which behaves as mode says, into the plugin
// directory.
func (p *pluginHost) install(name, mode, version string) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	data, err := os.ReadFile(testbin.BuildDir(p.t, "../pluginhost/supervisor/testdata/plugin"))
	check.NoError(p.t, err)
	more := "\n#fixture " + mode + " " + version + "\n"
	if base := filepath.Base(path); !strings.HasPrefix(base, "fixture") {
		more += "#named " + base + "\n"
	}
	check.NoError(p.t, os.WriteFile(path+".tmp", append(data, more...), 0o755))
	check.NoError(p.t, os.Rename(path+".tmp", path))
	return path
}

// await waits until the plugin's status is ok.
func (p *pluginHost) await(what string, ok func(*hostv1.Plugin) bool) *hostv1.Plugin {
	p.t.Helper()
	var found *hostv1.Plugin
	check.Eventually(p.t, what, func() bool {
		list, err := p.client.Plugins.ListPlugins(p.ctx, &hostv1.ListPluginsRequest{})
		check.NoError(p.t, err)
		n := slices.IndexFunc(list.Plugins, func(p *hostv1.Plugin) bool { return p.Name == "fixture" })
		if n < 0 {
			return false
		}
		found = list.Plugins[n]
		return ok(found)
	})
	return found
}

// The operations of operators on a plugin.
func TestPluginsLife(t *testing.T) {
	p := openPluginHost(t)
	plugins := p.client.Plugins
	first := p.await("the plugin", func(p *hostv1.Plugin) bool { return p.State == "running" })
	if first.Kind != "storage.v1" || first.Version != "1.0.0" || first.Generation == 0 || first.StartedAt == nil ||
		len(first.Swaps) != 0 {
		t.Errorf("at first: %v", first)
	}
	same, err := plugins.SwapPlugin(p.ctx, &hostv1.SwapPluginRequest{Name: "fixture"})
	if err != nil || same.GetPlugin().GetGeneration() != first.Generation {
		t.Errorf("a swap to what serves: %v, %v", same, err)
	}
	_, err = plugins.RollbackPlugin(p.ctx, &hostv1.RollbackPluginRequest{Name: "fixture"})
	wantError(t, err, connect.CodeFailedPrecondition, "there is no earlier version to go back to")

	p.install("fixture", "good", "1.1.0")
	second := p.await("the swap", func(p *hostv1.Plugin) bool { return p.Version == "1.1.0" && p.Draining == 0 })
	w := second.Swaps[0]
	if second.LastGood != first.Sha256 || w.At == nil || w.Took.AsDuration() <= 0 || w.Error != "" || w.Rollback ||
		w.From.Generation != first.Generation || w.From.Version != "1.0.0" || w.From.Sha256 != first.Sha256 ||
		w.To.Generation != second.Generation || w.To.Version != "1.1.0" || w.To.Sha256 != second.Sha256 {
		t.Errorf("after a swap: %v", second)
	}

	back := check.Must(plugins.RollbackPlugin(p.ctx, &hostv1.RollbackPluginRequest{Name: "fixture"}))(t)
	if b := back.Plugin; b.Sha256 != first.Sha256 || !b.Swaps[1].Rollback ||
		b.Refused[second.Sha256] != "rolled back by an operator" {
		t.Errorf("rolled back: %v", b)
	}
	again := check.Must(plugins.SwapPlugin(p.ctx, &hostv1.SwapPluginRequest{Name: "fixture"}))(t)
	if again.Plugin.Version != "1.1.0" || len(again.Plugin.Refused) != 0 {
		t.Errorf("swapped to what was refused: %v", again)
	}
	pinned, err := plugins.PinPlugin(p.ctx, &hostv1.PinPluginRequest{Name: "fixture", Sha256: first.Sha256})
	check.NoError(t, err)
	if pinned.Plugin.Pinned != first.Sha256 || pinned.Plugin.Version != "1.0.0" {
		t.Errorf("pinned: %v", pinned)
	}
	_, err = plugins.RollbackPlugin(p.ctx, &hostv1.RollbackPluginRequest{Name: "fixture"})
	wantError(t, err, connect.CodeFailedPrecondition, "is pinned", "pannier plugin unpin fixture")
	_, err = plugins.PinPlugin(p.ctx, &hostv1.PinPluginRequest{Name: "fixture", Sha256: strings.Repeat("0", 64)})
	wantError(t, err, connect.CodeFailedPrecondition, "neither in "+p.dir)
	_, err = plugins.PinPlugin(p.ctx, &hostv1.PinPluginRequest{Name: "fixture", Sha256: "../../etc"})
	wantError(t, err, connect.CodeFailedPrecondition, "neither a version, nor the first 6 digits")
	_, err = plugins.RestartPlugin(p.ctx, &hostv1.RestartPluginRequest{
		Name: "fixture", Grace: durationpb.New(-time.Second),
	})
	wantError(t, err, connect.CodeInvalidArgument, "grace must be from 0s to 1h")
	restarted, err := plugins.RestartPlugin(p.ctx, &hostv1.RestartPluginRequest{
		Name: "fixture", Grace: durationpb.New(0),
	})
	check.NoError(t, err)
	if r := restarted.Plugin; r.Pid == pinned.Plugin.Pid || r.Sha256 != first.Sha256 ||
		!r.Swaps[len(r.Swaps)-1].Restart || len(r.Versions) != 2 || !r.Versions[0].Waits || !r.Versions[1].Kept ||
		r.Versions[1].Version != "1.0.0" || r.Versions[1].ServedFrom == nil {
		t.Errorf("restarted: %v", r)
	}
	for _, percent := range []int32{-1, 100} {
		_, err = plugins.SwapPlugin(p.ctx, &hostv1.SwapPluginRequest{Name: "fixture", CanaryPercent: percent})
		wantError(t, err, connect.CodeInvalidArgument, "canary_percent must be 1 to 99")
	}
	_, err = plugins.PromotePlugin(p.ctx, &hostv1.PromotePluginRequest{Name: "fixture"})
	wantError(t, err, connect.CodeFailedPrecondition, "canary: there is none", "swap -canary")
	tried, err := plugins.SwapPlugin(p.ctx, &hostv1.SwapPluginRequest{Name: "fixture", CanaryPercent: 30})
	check.NoError(t, err)
	if c := tried.Plugin.Canary; c.GetPercent() != 30 || c.Generation.GetVersion() != "1.1.0" || c.Pid == 0 ||
		c.StartedAt == nil || tried.Plugin.Version != "1.0.0" {
		t.Errorf("a canary: %v", tried)
	}
	_, err = plugins.SwapPlugin(p.ctx, &hostv1.SwapPluginRequest{Name: "fixture"})
	wantError(t, err, connect.CodeFailedPrecondition, "plugin promote fixture")
	ended, err := plugins.RollbackPlugin(p.ctx, &hostv1.RollbackPluginRequest{Name: "fixture"})
	check.NoError(t, err)
	if e := ended.Plugin; e.Canary != nil || e.Version != "1.0.0" || e.Swaps[len(e.Swaps)-1].CanaryPercent != 30 {
		t.Errorf("rolled back: %v", e)
	}
	_, err = plugins.SwapPlugin(p.ctx, &hostv1.SwapPluginRequest{Name: "fixture", CanaryPercent: 30})
	check.NoError(t, err)
	_, err = plugins.PromotePlugin(p.ctx, &hostv1.PromotePluginRequest{Name: "fixture"})
	wantError(t, err, connect.CodeFailedPrecondition, "canary: it has answered no call yet")
	p.await("the canary to answer a call", func(now *hostv1.Plugin) bool {
		handle := check.Must(p.plugins.AcquireCall(p.ctx, "fixture"))(t)
		defer handle.Release()
		_, err := storage.NewClient(handle.Conn).Attach(p.ctx, storage.Driver{ID: "d"}, storage.AttachRequest{})
		check.NoError(t, err)
		return now.GetCanary().GetCalls() > 0
	})
	promoted := check.Must(plugins.PromotePlugin(p.ctx, &hostv1.PromotePluginRequest{Name: "fixture"}))(t)
	if now := promoted.Plugin; now.Version != "1.1.0" || now.Pinned != second.Sha256 || now.Canary != nil {
		t.Errorf("promoted: %v", now)
	}
	free := check.Must(plugins.UnpinPlugin(p.ctx, &hostv1.UnpinPluginRequest{Name: "fixture"}))(t)
	if free.Plugin.Pinned != "" || free.Plugin.Version != "1.1.0" {
		t.Errorf("unpinned: %v", free)
	}
	for _, call := range []func() error{
		func() error {
			_, err := plugins.SwapPlugin(p.ctx, &hostv1.SwapPluginRequest{Name: "nobody"})
			return err
		},
		func() error {
			_, err := plugins.UnpinPlugin(p.ctx, &hostv1.UnpinPluginRequest{Name: "nobody"})
			return err
		},
		func() error { _, err := p.lines(t, &hostv1.PluginLogRequest{Name: "nobody"}); return err },
	} {
		wantError(t, call(), connect.CodeNotFound, `"nobody"`)
	}
	_, err = plugins.SwapPlugin(p.ctx, &hostv1.SwapPluginRequest{Name: "../x"})
	wantError(t, err, connect.CodeInvalidArgument, "name")
	if log := p.log.String(); !strings.Contains(log, "PinPlugin object=fixture") {
		t.Errorf("a pin is not logged:\n%s", log)
	}
}

// front has a front door that runs, and answers to nothing else.
type front struct{ plugins.Plugins }

func (front) Status() []supervisor.Status {
	return []supervisor.Status{{Name: "page", Kind: frontend.Kind}}
}

// A front door has no calls of which a canary could get a part.
func TestAFrontDoorHasNoCanary(t *testing.T) {
	h := openHost(t, func(c *parts) { c.Plugins = front{} })
	_, err := h.client.Plugins.SwapPlugin(h.ctx, &hostv1.SwapPluginRequest{Name: "page", CanaryPercent: 10})
	wantError(t, err, connect.CodeFailedPrecondition, "a front door can have no canary")
}

// A plugin is removed when it has neither a file nor workloads that depend on it.
func TestRemovePlugin(t *testing.T) {
	needsRoot(t)
	p := openPluginHost(t)
	remove := func(name string) error {
		_, err := p.client.Plugins.RemovePlugin(p.ctx, &hostv1.RemovePluginRequest{Name: name})
		return err
	}
	path := filepath.Join(p.dir, "fixture")
	wantError(t, remove("fixture"), connect.CodeFailedPrecondition, "has a file", "remove "+path+" first")
	wantError(t, remove("nobody"), connect.CodeNotFound, `"nobody"`)
	wantError(t, remove("../x"), connect.CodeInvalidArgument, "name")
	check.NoError(t, os.Remove(path))
	gone := p.await("the status", func(p *hostv1.Plugin) bool { return p.FileProblem != "" })
	if gone.State != "running" || !strings.Contains(gone.FileProblem, "pannier plugin remove fixture") {
		t.Errorf("without its file: %v", gone)
	}
	p.create(t, spec("mysql"))
	p.start(t, "db", "mysql")
	wantError(t, remove("fixture"), connect.CodeFailedPrecondition, `plugin "fixture"`, `workloads depend on it: volume "mysql" of workload "db":`)
	p.stop(t, "db")
	p.naming = []string{`csi_driver "d"`, `plugin "fixture"`}
	wantError(t, remove("fixture"), connect.CodeFailedPrecondition, `it is named by csi_driver "d", plugin "fixture":`)
	_, err := p.client.Plugins.RemovePlugin(p.ctx, &hostv1.RemovePluginRequest{Name: "fixture", Force: true})
	check.NoError(t, err)
	p.await("the end", func(p *hostv1.Plugin) bool { return p.Pid == 0 && strings.Contains(p.LastError, "has no file of it") })
}

// If a binary cannot take over, the error has the reason and says which binary serves.
func TestSwapThatFails(t *testing.T) {
	p := openPluginHost(t)
	first := p.await("the plugin", func(p *hostv1.Plugin) bool { return p.State == "running" })
	p.install("fixture", "exit", "2.0.0")
	p.await("the refusal", func(p *hostv1.Plugin) bool { return len(p.Refused) == 1 })
	_, err := p.client.Plugins.SwapPlugin(p.ctx, &hostv1.SwapPluginRequest{Name: "fixture"})
	wantError(t, err, connect.CodeFailedPrecondition, "the disk is on fire", "callers keep generation 1 (version 1.0.0)")
	now := p.await("the plugin", func(*hostv1.Plugin) bool { return true })
	if now.Pid != first.Pid || len(now.Swaps) != 2 || !strings.Contains(now.Swaps[1].Error, "the disk is on fire") ||
		!strings.Contains(now.Refused[now.Swaps[1].To.Sha256], "the disk is on fire") {
		t.Errorf("after a swap that failed: %v", now)
	}
}

func TestVerifyPlugin(t *testing.T) {
	p := openPluginHost(t)
	first := p.await("the plugin", func(p *hostv1.Plugin) bool { return p.State == "running" })
	check.NoError(t, os.Mkdir(filepath.Join(filepath.Dir(p.dir), "new"), 0o755))
	verify := func(path string) (*hostv1.VerifyPluginResponse, error) {
		return p.client.Plugins.VerifyPlugin(p.ctx, &hostv1.VerifyPluginRequest{Path: path})
	}
	v, err := verify(p.install("../new/fixture_v3.0.0", "good", "3.0.0"))
	check.NoError(t, err)
	if v.Name != "fixture" || !v.Known || v.Kind != "storage.v1" || v.Version != "3.0.0" || len(v.Sha256) != 64 ||
		!v.Healthy {
		t.Errorf("verified %v", v)
	}
	v, err = verify(p.install("../new/other", "unwell", "3.0.0"))
	check.NoError(t, err)
	if v.Known || v.Healthy || v.Message != "no driver answers" {
		t.Errorf("verified one that is unwell: %v", v)
	}
	_, err = verify(p.install("../new/fixture", "exit", "3.0.0"))
	wantError(t, err, connect.CodeFailedPrecondition, "the disk is on fire")
	_, err = verify("/nowhere/at-all")
	wantError(t, err, connect.CodeNotFound, "/nowhere/at-all")
	_, err = verify("fixture")
	wantError(t, err, connect.CodeInvalidArgument, "absolute")
	// Access to the socket is not enough to have the agent run a file.
	for uid, want := range map[uint32]connect.Code{
		65534:         connect.CodePermissionDenied,
		p.access.self: connect.CodeNotFound, 0: connect.CodeNotFound,
	} {
		ctx := call.WithCaller(p.ctx, &call.Caller{Root: p.access.owns(call.Peer{UID: uid})})
		_, err := p.cfg.Plugins.VerifyPlugin(ctx, &hostv1.VerifyPluginRequest{Path: "/nowhere/at-all"})
		wantError(t, err, want)
	}
	if now := p.await("the plugin", func(*hostv1.Plugin) bool { return true }); now.Pid != first.Pid ||
		len(now.Swaps) != 0 {
		t.Errorf("after verifying: %v", now)
	}
}

// lines returns the lines of a log's stream.
func (p *pluginHost) lines(t *testing.T, req *hostv1.PluginLogRequest) (all []string, err error) {
	t.Helper()
	stream, err := p.client.Plugins.PluginLog(p.ctx, req)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	for stream.Receive() {
		all = append(all, stream.Msg().Line)
	}
	return all, stream.Err()
}

func TestPluginLog(t *testing.T) {
	p := openPluginHost(t)
	path := check.Must(p.cfg.Plugins.Plugins.Log("fixture"))(t)
	appendTo := func(text string) {
		t.Helper()
		f := check.Must(os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0))(t)
		_, err := f.WriteString(text)
		check.NoError(t, errors.Join(err, f.Close()))
	}
	long := strings.Repeat("x", 64<<10)
	appendTo("one\n\ntwo \xff\n" + long + "yz\nlast")
	all := check.Must(p.lines(t, &hostv1.PluginLogRequest{Name: "fixture", Recent: 4}))(t)
	if want := []string{"", "two \uFFFD", long, "yz", "last"}; !slices.Equal(all, want) {
		t.Errorf("the log's end is %.60q", all)
	}
	_, err := p.lines(t, &hostv1.PluginLogRequest{Name: "fixture", Recent: 10_001})
	wantError(t, err, connect.CodeInvalidArgument, "recent")

	// Following continues when the host truncates the file.
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	stream, err := p.client.Plugins.PluginLog(ctx, &hostv1.PluginLogRequest{Name: "fixture", Recent: 1, Follow: true})
	check.NoError(t, err)
	defer stream.Close()
	next := func(want string) {
		t.Helper()
		if !stream.Receive() || stream.Msg().Line != want {
			t.Fatalf("followed %.60q, %v; want %q", stream.Msg().GetLine(), stream.Err(), want)
		}
	}
	appendTo(" and more\nthen\n")
	next("last and more")
	next("then")
	check.NoError(t, os.Truncate(path, 0))
	appendTo("afresh\n")
	next("afresh")
	began := time.Now()
	check.NoError(t, p.Close())
	if took := time.Since(began); took > closeGrace {
		t.Errorf("closed after %s", took)
	}
	for stream.Receive() {
	}
	wantError(t, stream.Err(), connect.CodeUnavailable, "stopping")
}
