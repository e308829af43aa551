// A plugin for the kit's tests: plugin MODE KIND STATE. MODE is "good" or says how it misbehaves, STATE is the
// directory where its backend keeps everything. The backend itself is an HTTP server on the socket that a call
// names. With a mode that begins with "own" it is an issuer or a catalog without Consul: it reaches no backend, and
// keeps in the host's state which tokens it has given.
package main

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
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/frontend"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/sdk/wire"
)

func main() {
	p := &plugin{mode: os.Args[1], own: strings.HasPrefix(os.Args[1], "own"), state: os.Args[3], seen: map[string]bool{}, copies: map[string]bool{}}
	var kind sdk.Plugin
	switch os.Args[2] {
	case "storage":
		kind = storage.Plugin(&volumes{plugin: p})
	case "identity":
		kind = identity.Plugin(&tokens{plugin: p})
	case "registration":
		kind = registration.Plugin(&services{plugin: p})
	case "bootstrap":
		kind = bootstrap.Plugin(&proxies{plugin: p})
	case "device":
		kind = device.Plugin(&devices{plugin: p})
	case "frontend":
		kind = frontend.Plugin(&doors{plugin: p})
	}
	info := sdk.Info{Name: "fixture", Version: "1.2.3-rc.1+build"}
	switch p.mode {
	case "exits":
		fmt.Fprintln(os.Stderr, "the disk is on fire")
		os.Exit(3)
	case "prints":
		fmt.Println("hello")
	case "nameless":
		info.Name = ""
	case "strange-kind":
		kind.Kind = "storage.v9"
	case "no-service":
		kind.Register = func(grpc.ServiceRegistrar) {}
	case "odd-version":
		info.Version = "v1.2.3"
	case "exits-well-by-hand":
		if os.Getenv(wire.Handshake.MagicCookieKey) == "" {
			os.Exit(0)
		}
	case "open-to-all", "fickle", "one-host", "hasty", "stays", "mute", "cuts":
		serve(p.mode, info, kind)
		return
	}
	sdk.Main(info, kind)
}

// plugin is what all kinds have in common.
type plugin struct {
	mode, state string
	own         bool

	mu     sync.Mutex
	answer string          // the configuration
	seen   map[string]bool // what this process has done
	copies map[string]bool // targets that are copies
	busy   int
	times  int // that an answer was given which changes
	alone  []*os.File
	childs []*exec.Cmd
}

func (p *plugin) decode(config []byte) (string, error) {
	var c struct {
		Answer string `json:"answer"`
	}
	if p.mode == "careless" && !strings.HasPrefix(string(config), "{") {
		return "", nil
	}
	d := json.NewDecoder(strings.NewReader(string(config)))
	if p.mode != "lax" {
		d.DisallowUnknownFields()
	}
	err := d.Decode(&c)
	if err != nil && p.mode == "wordless" {
		err = errors.New("the configuration is wrong")
	}
	if err != nil && p.mode == "wrong-code" {
		err = status.Error(codes.Internal, err.Error())
	}
	return c.Answer, err
}

func (p *plugin) Validate(_ context.Context, config []byte) error {
	if p.mode == "refuses" {
		return errors.New("not to its taste")
	}
	_, err := p.decode(config)
	return err
}

func (p *plugin) Configure(_ context.Context, config []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer, err := p.decode(config)
	if p.mode == "forgets" {
		p.answer = answer
	}
	if err != nil {
		return err
	}
	p.answer = answer
	switch p.mode {
	case "ignores-term":
		signal.Ignore(syscall.SIGTERM)
	case "leaves-child":
		cmd := exec.Command("sleep", "60")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd.Start()
	}
	return nil
}

func (p *plugin) Health(context.Context) error {
	if p.mode == "unwell" {
		return errors.New("no disk")
	}
	return nil
}

func (p *plugin) Close() error {
	for _, c := range p.childs {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	switch p.mode {
	case "exits-badly":
		return errors.New("no way")
	case "leaves-file":
		return os.WriteFile(filepath.Join(os.Getenv("PLUGIN_UNIX_SOCKET_DIR"), "left"), nil, 0o600)
	}
	return nil
}

// reach calls a backend and passes it a secret. name is the object of the call.
func (p *plugin) reach(ctx context.Context, endpoint, name, secret string) error {
	if err := p.enter(name); err != nil {
		return err
	}
	defer p.leave(name)
	if p.own {
		return nil
	}
	socket, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok {
		return status.Error(codes.InvalidArgument, "no endpoint")
	}
	if p.mode == "ignores-cancel" {
		ctx = context.WithoutCancel(ctx)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://backend/", nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Token", secret)
	res, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		switch p.mode {
		case "internal":
			return errors.New("the backend is away")
		case "tells":
			return status.Error(codes.Unavailable, "the backend is away for "+secret)
		}
		return status.Error(codes.Unavailable, "the backend is away")
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		if p.mode != "repeats" {
			text = nil
		}
		return status.Errorf(codes.PermissionDenied, "the backend refuses: %s", text)
	}
	return nil
}

// enter implements several modes that depend on the caller.
func (p *plugin) enter(name string) error {
	path := filepath.Join(p.state, name)
	if !calls(name) {
		return nil
	}
	switch p.mode {
	case "stale":
		if _, err := os.Stat(path + ".dirty"); err == nil {
			return status.Error(codes.FailedPrecondition, name+" is locked")
		}
		return os.WriteFile(path+".dirty", nil, 0o600)
	case "alone":
		return p.lock(path)
	}
	return nil
}

// calls distinguishes the names used by the checks of calls from all others.
func calls(name string) bool { return strings.HasPrefix(name, "conf-call-") }

func (p *plugin) leave(name string) {
	if p.mode == "stale" {
		_ = os.Remove(filepath.Join(p.state, name) + ".dirty")
	}
}

// lock takes a lock and keeps it until the process ends.
func (p *plugin) lock(path string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen[path] {
		return nil
	}
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return status.Error(codes.FailedPrecondition, "another process has it")
	}
	p.seen[path], p.alone = true, append(p.alone, f)
	return nil
}

// done records that something was made; made says whether it exists.
func (p *plugin) done(name string) error {
	return os.WriteFile(filepath.Join(p.state, name), nil, 0o600)
}

func (p *plugin) made(name string) bool {
	_, err := os.Stat(filepath.Join(p.state, name))
	return err == nil
}

func (p *plugin) gone(name string) { _ = os.Remove(filepath.Join(p.state, name)) }

// again returns a different text at each call of one process.
func (p *plugin) again() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times++
	return fmt.Sprint("time ", p.times)
}
