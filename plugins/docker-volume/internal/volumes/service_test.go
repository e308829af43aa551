package volumes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	"github.com/pannier/pannier/test/lib/check"
)

// memory is a host's state for the plugin.
type memory struct {
	mu   sync.Mutex
	data map[string][]byte
}

func (m *memory) Get(ctx context.Context, key string) ([]byte, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, found := m.data[key]
	return v, found, ctx.Err()
}

func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.data, key)
	return nil
}

func (m *memory) List(context.Context, string) (keys []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.data {
		keys = append(keys, key)
	}
	return keys, nil
}

func (m *memory) CompareAndSwap(ctx context.Context, key string, expected, value []byte) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if now, found := m.data[key]; found != (expected != nil) || !bytes.Equal(now, expected) {
		return false, nil
	}
	m.data[key] = value
	return true, nil
}

// host is a host's API with one volume.
type host struct {
	hostv1connect.UnimplementedVolumeServiceHandler
	hostv1connect.UnimplementedWorkloadServiceHandler

	mu      sync.Mutex
	state   string // of the workload
	holders int
	other   string // the workload that has the volume
	frees   bool   // it is releasing it
	stops   int
	hang    bool          // starts do not return
	slow    time.Duration // a start takes so long, whether or not its caller waits
	starts  int           // that were begun
	blind   bool          // the state of workloads cannot be read
	deleted bool
	asked   func() // by whoever asks for the state of the workload, before the answer
	ending  func() // by whoever stops the workload, before it has ended
}

func (h *host) with(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

func (h *host) ListWorkloads(context.Context, *hostv1.ListWorkloadsRequest) (*hostv1.ListWorkloadsResponse, error) {
	return &hostv1.ListWorkloadsResponse{Node: "n1"}, nil
}

func (h *host) workload() *hostv1.Workload {
	return &hostv1.Workload{State: h.state, Mounts: []*hostv1.Mount{{HostPath: "/mounted"}}}
}

// once calls a function that a test has set, and forgets it.
func (h *host) once(f *func()) {
	h.mu.Lock()
	do := *f
	*f = nil
	h.mu.Unlock()
	if do != nil {
		do()
	}
}

func (h *host) GetWorkload(context.Context, *hostv1.GetWorkloadRequest) (*hostv1.GetWorkloadResponse, error) {
	h.once(&h.asked)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.blind {
		return nil, connect.NewError(connect.CodeUnknown, errors.New("the mounts cannot be read"))
	}
	if h.state == "" {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such workload"))
	}
	return &hostv1.GetWorkloadResponse{
		Workload: h.workload(), Holders: make([]*hostv1.Holder, h.holders),
	}, nil
}

func (h *host) StartWorkload(ctx context.Context, _ *hostv1.StartWorkloadRequest,
	stream *connect.ServerStream[hostv1.StartWorkloadResponse],
) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hang {
		h.mu.Unlock()
		<-ctx.Done()
		h.mu.Lock()
		return ctx.Err()
	}
	if h.other != "" {
		return connect.NewError(connect.CodeFailedPrecondition, errors.New("claim is held"))
	}
	if h.state == "" {
		h.starts++
		h.state = "starting"
		time.AfterFunc(h.slow, func() {
			h.with(func() {
				if h.state == "starting" {
					h.state = "running"
				}
			})
		})
	}
	for h.state == "starting" {
		h.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		h.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return stream.Send(&hostv1.StartWorkloadResponse{
		Event: &hostv1.StartWorkloadResponse_Workload{Workload: h.workload()},
	})
}

func (h *host) StopWorkload(context.Context, *hostv1.StopWorkloadRequest,
	*connect.ServerStream[hostv1.StopWorkloadResponse],
) error {
	h.once(&h.ending)
	h.with(func() { h.state, h.stops = "", h.stops+1 })
	return nil
}

func (h *host) GetVolume(ctx context.Context, r *hostv1.GetVolumeRequest) (*hostv1.GetVolumeResponse, error) {
	if r.GetRead().GetWait() != nil { // nothing changes
		select {
		case <-ctx.Done():
		case <-time.After(r.GetRead().GetWait().AsDuration()):
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	v := &hostv1.Volume{}
	if h.other != "" {
		v.Claims = []*hostv1.Claim{{Workload: h.other, State: "taken"}}
		if h.frees {
			v.Claims[0].State = "unpublishing"
		}
	}
	return &hostv1.GetVolumeResponse{Volume: v}, nil
}

func (h *host) ExplainVolume(context.Context, *hostv1.ExplainVolumeRequest) (*hostv1.ExplainVolumeResponse, error) {
	return &hostv1.ExplainVolumeResponse{Claims: []*hostv1.ExplainedClaim{{
		Claim: &hostv1.Claim{
			Workload: h.other, Namespace: "docker", Node: "n2", Mode: "write", State: "taken",
			TakenAt: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		},
	}}}, nil
}

func (h *host) DeleteVolume(context.Context, *hostv1.DeleteVolumeRequest) (*hostv1.DeleteVolumeResponse, error) {
	h.with(func() { h.deleted = true })
	return &hostv1.DeleteVolumeResponse{}, nil
}

// pipes is a listener whose connections need no kernel, so that time stands still while they are idle.
type pipes struct {
	conns  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}
func (p pipes) Close() error   { p.close(); return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

// newService returns a service of a host, in a bubble of synctest. The next process has the same memory.
func newService(t *testing.T, h *host, kv keyValues) *service {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(hostv1connect.NewVolumeServiceHandler(h))
	mux.Handle(hostv1connect.NewWorkloadServiceHandler(h))
	listener, protocols := pipes{conns: make(chan net.Conn)}, &http.Protocols{}
	listener.closed, listener.close = context.WithCancel(context.Background())
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: protocols}
	go func() { _ = server.Serve(listener) }()
	client := api.NewOver(func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		listener.conns <- far
		return near, nil
	})
	own, err := processOf(os.Getpid())
	check.NoError(t, err)
	cfg := &config{Namespace: "docker", Driver: "local", Timeout: "100s"}
	check.NoError(t, cfg.Validate())
	ctx, stop := context.WithCancel(context.Background())
	s := &service{
		config: func() *config { return cfg }, store: &store{kv, "boot-1"}, work: &work{api: client}, self: own,
		log: slog.New(slog.DiscardHandler), ctx: ctx,
	}
	t.Cleanup(func() {
		stop()
		s.pending.Wait()
		_ = client.Close()
		_ = server.Close()
	})
	return s
}

// call makes a call of the protocol, and returns its path or its error.
func call(ctx context.Context, s *service, what, body string) string {
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/"+what, strings.NewReader(body)))
	raw, _ := io.ReadAll(w.Body)
	var a answer
	_ = json.Unmarshal(raw, &a)
	return a.Mountpoint + a.Err
}

// expect makes a call about the volume data.
func expect(t *testing.T, s *service, what, id, want string) {
	t.Helper()
	got := call(t.Context(), s, "VolumeDriver."+what, `{"Name": "data", "ID": "`+id+`"}`)
	if got != want && (want == "" || !strings.Contains(got, want)) {
		t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

// after lets time pass, and checks whether the workload runs then.
func (h *host) after(t *testing.T, d time.Duration, runs bool) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	h.with(func() {
		if (h.state == "running") != runs {
			t.Fatalf("after %s the workload is %q", d, h.state)
		}
	})
}

func TestMounts(t *testing.T) {
	newMemory := func() *memory { return &memory{data: map[string][]byte{}} }
	for name, test := range map[string]func(t *testing.T, h *host, s *service){
		"the last Unmount releases, after a moment": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			expect(t, s, "Mount", "2", "/mounted")
			h.with(func() { h.holders = 1 })
			expect(t, s, "Unmount", "1", "")
			h.after(t, time.Minute, true)
			h.with(func() { h.holders = 0 })
			expect(t, s, "Unmount", "2", "")
			h.after(t, linger/2, true)
			h.after(t, linger, false)
		},
		"an id counts as often as it was mounted": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			expect(t, s, "Mount", "1", "/mounted")
			expect(t, s, "Unmount", "1", "")
			h.after(t, time.Minute, true)
			expect(t, s, "Unmount", "1", "")
			h.after(t, 2*linger, false)
		},
		"one id does not release another's": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			expect(t, s, "Mount", "2", "/mounted")
			expect(t, s, "Unmount", "1", "")
			expect(t, s, "Unmount", "1", "") // once too often
			h.after(t, time.Minute, true)
		},
		"a mount, an unmount and a mount keep it": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			expect(t, s, "Unmount", "1", "")
			h.after(t, linger/2, true)
			expect(t, s, "Mount", "1", "/mounted")
			h.after(t, time.Minute, true)
			if h.stops > 0 {
				t.Errorf("it was stopped %d times", h.stops)
			}
		},
		"a Mount that comes while the holders are looked for keeps it": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			again := func() {
				if got := call(s.ctx, s, "VolumeDriver.Mount", `{"Name": "data", "ID": "2"}`); got != "/mounted" {
					t.Errorf("Mount: %q", got)
				}
			}
			expect(t, s, "Unmount", "1", "")
			h.with(func() { h.asked = again })
			h.after(t, time.Minute, true)
			if h.stops > 0 {
				t.Errorf("it was stopped %d times", h.stops)
			}
		},
		"a Mount that comes while it is stopped starts it again": func(t *testing.T, h *host, s *service) {
			for what, end := range map[string]func(){
				"Unmount": func() { expect(t, s, "Unmount", "1", "") },
				"Remove": func() {
					if err := s.remove(t.Context(), "data"); err != nil {
						t.Errorf("Remove: %v", err)
					}
				},
			} {
				expect(t, s, "Mount", "1", "/mounted")
				ended, came := false, make(chan struct{})
				h.with(func() {
					h.ending = func() {
						go func() {
							defer close(came)
							_, _ = s.enter(s.ctx, "data", func(*record) {
								if !ended {
									t.Errorf("%s: a Mount counts while the workload is being stopped", what)
								}
							})
						}()
						time.Sleep(time.Second)
						ended = true
					}
				})
				end()
				<-came
				if got := call(t.Context(), s, "VolumeDriver.Create", `{"Name": "data"}`); got != "" {
					t.Fatal(got)
				}
			}
		},
		"a holder keeps it, whatever the counts say": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			h.with(func() { h.holders = 1 })
			expect(t, s, "Unmount", "1", "")
			h.after(t, time.Minute, true)
			h.with(func() { h.holders = 0 })
			go s.watch(s.ctx)
			h.after(t, compareInterval+linger, false)
		},
		"the next process knows the holders": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			h.with(func() { h.holders = 1 })
			h.after(t, 2*seenAfter, true)
			next := newService(t, h, s.store.kv)
			go next.watch(next.ctx)
			h.after(t, time.Minute, true)
			expect(t, next, "Unmount", "1", "")
			h.with(func() { h.holders = 0 })
			h.after(t, compareInterval+linger, false)
		},
		"an end that nobody has said": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			h.with(func() { h.holders = 1 })
			h.after(t, 2*seenAfter, true)
			h.with(func() { h.holders = 0 })
			next := newService(t, h, s.store.kv)
			go next.watch(next.ctx)
			h.after(t, 2*linger, false)
		},
		"a container that waits for another volume": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			go s.watch(s.ctx)
			h.after(t, unseenGrace-time.Minute, true)
			h.after(t, 2*time.Minute, false)
		},
		"after a reboot no id counts": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			s.store.boot = "boot-2"
			go s.watch(s.ctx)
			h.after(t, 2*linger, false)
		},
		"the caller is gone": func(t *testing.T, h *host, s *service) {
			h.with(func() { h.hang = true })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if got := call(ctx, s, "VolumeDriver.Mount", `{"Name": "data", "ID": "1"}`); got == "/mounted" {
				t.Error("it is mounted")
			}
			if r, err := s.store.get(t.Context(), "data"); err != nil || r.used() {
				t.Errorf("got %+v, %v", r, err)
			}
		},
		"the next try joins a slow start": func(t *testing.T, h *host, s *service) {
			h.with(func() { h.slow = 8 * time.Second })
			go s.watch(s.ctx)
			for _, want := range []string{"", "/mounted"} {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				got := call(ctx, s, "VolumeDriver.Mount", `{"Name": "data", "ID": "1"}`)
				cancel()
				if (got == "/mounted") != (want == "/mounted") {
					t.Errorf("Mount: %q, want %q", got, want)
				}
				time.Sleep(2 * linger) // until somebody starts the container again
			}
			h.after(t, 2*nextTry, true)
			expect(t, s, "Unmount", "1", "")
			h.after(t, 2*linger, false)
			if h.starts != 1 || h.stops != 1 {
				t.Errorf("it was started %d times and stopped %d times", h.starts, h.stops)
			}
		},
		"a slow start that nobody joins is undone": func(t *testing.T, h *host, s *service) {
			h.with(func() { h.slow = 8 * time.Second })
			go s.watch(s.ctx)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			call(ctx, s, "VolumeDriver.Mount", `{"Name": "data", "ID": "1"}`)
			h.after(t, nextTry-time.Second, true)
			h.after(t, 2*time.Second, false)
		},
		"a volume that another host has": func(t *testing.T, h *host, s *service) {
			h.with(func() { h.other = "docker-volume.data.n2" })
			begun := time.Now()
			expect(t, s, "Mount", "1", `workload "docker-volume.data.n2" on node "n2" has it since 2026-01-02T03:04:05Z `+
				`(write, taken); to end that: pannier workload stop -namespace docker docker-volume.data.n2 (on node "n2")`)
			if took := time.Since(begun); took != 100*time.Second {
				t.Errorf("it took %s", took)
			}
			go func() {
				time.Sleep(10 * time.Second)
				h.with(func() { h.other = "" })
			}()
			expect(t, s, "Mount", "1", "/mounted")
		},
		"a volume that its earlier run is releasing": func(t *testing.T, h *host, s *service) {
			h.with(func() { h.other, h.frees = "docker-volume.data.n1", true })
			defer time.AfterFunc(10*time.Second, func() { h.with(func() { h.other = "" }) }).Stop()
			expect(t, s, "Mount", "1", "/mounted")
		},
		"a volume that is created again": func(t *testing.T, _ *host, s *service) {
			for opts, want := range map[string]string{
				``: "", `"delete": "false"`: "", `"read_only": "true"`: "other options", `"delete": "true"`: "other options",
				`"namespace": "other"`: "other options",
			} {
				got := call(t.Context(), s, "VolumeDriver.Create", `{"Name": "data", "Opts": {`+opts+`}}`)
				if (got == "") != (want == "") || !strings.Contains(got, want) {
					t.Errorf("with %s: %q", opts, got)
				}
			}
		},
		"a request without its body": func(t *testing.T, _ *host, s *service) {
			if got := call(t.Context(), s, "VolumeDriver.Mount", ""); !strings.Contains(got, "run the command again") {
				t.Errorf("got %q", got)
			}
			if got := call(t.Context(), s, "VolumeDriver.List", ""); got != "" {
				t.Errorf("List: %q", got)
			}
		},
		"an unknown volume": func(t *testing.T, _ *host, s *service) {
			if got := call(t.Context(), s, "VolumeDriver.Get", `{"Name": "other"}`); !strings.Contains(got, "no such volume") {
				t.Errorf("got %q", got)
			}
			if got := call(t.Context(), s, "VolumeDriver.Remove", `{"Name": "other"}`); got != "" {
				t.Errorf("Remove: %q", got)
			}
		},
		"a volume whose state cannot be shown is there": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			h.with(func() { h.blind = true })
			v, err := s.get(t.Context(), "data")
			if err != nil || v.Name != "data" || v.Status["error"] != "the mounts cannot be read" {
				t.Errorf("got %+v, %v", v, err)
			}
		},
		"removed": func(t *testing.T, h *host, s *service) {
			expect(t, s, "Mount", "1", "/mounted")
			h.with(func() { h.holders = 1 })
			expect(t, s, "Remove", "", "in use")
			h.with(func() { h.holders = 0 })
			expect(t, s, "Remove", "", "")
			h.after(t, 0, false)
			expect(t, s, "Get", "", "no such volume")
			if h.deleted {
				t.Error("its data is deleted")
			}
		},
		"removed with its data": func(t *testing.T, h *host, s *service) {
			_, err := s.store.update(t.Context(), "data", func(r *record) error { r.Delete = true; return nil })
			check.NoError(t, err)
			expect(t, s, "Remove", "", "")
			if !h.deleted {
				t.Error("its data is kept")
			}
		},
		"an anonymous volume is removed without its data": func(t *testing.T, h *host, s *service) {
			name := strings.Repeat("0a", 32)
			for _, what := range []string{"Create", "Remove"} {
				if got := call(t.Context(), s, "VolumeDriver."+what, `{"Name": "`+name+`", "Opts": {"delete": "true"}}`); got != "" {
					t.Fatalf("%s: %s", what, got)
				}
			}
			if h.deleted {
				t.Error("its data is deleted")
			}
		},
		"a release by another process": func(t *testing.T, h *host, s *service) {
			_, err := s.store.update(t.Context(), "data", func(r *record) error { r.Releaser = &s.self; return nil })
			check.NoError(t, err)
			go func() {
				time.Sleep(time.Second)
				_ = s.released(s.ctx, "data")
			}()
			begun := time.Now()
			expect(t, s, "Mount", "1", "/mounted")
			if time.Since(begun) < time.Second {
				t.Error("it was not waited for")
			}
			dead := process{1 << 30, 1}
			_, err = s.store.update(t.Context(), "data", func(r *record) error { r.Releaser = &dead; return nil })
			check.NoError(t, err)
			expect(t, s, "Mount", "2", "/mounted")
			_ = h
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &host{}
				s := newService(t, h, newMemory())
				if got := call(t.Context(), s, "VolumeDriver.Create", `{"Name": "data"}`); got != "" {
					t.Fatal(got)
				}
				test(t, h, s)
			})
		})
	}
}

// After a restart of the agent another process may have the PID of one that was stopping a workload.
func TestLaterProcess(t *testing.T) {
	own, err := processOf(os.Getpid())
	check.NoError(t, err)
	if !own.lives() {
		t.Error("this process does not live")
	}
	own.StartTime++
	if own.lives() {
		t.Error("a later process is taken for an earlier one")
	}
}

func TestActivate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, &host{}, &memory{data: map[string][]byte{}})
		for what, want := range map[string]string{"Plugin.Activate": "VolumeDriver", "VolumeDriver.Capabilities": "global"} {
			w := httptest.NewRecorder()
			s.handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/"+what, http.NoBody))
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) ||
				!slices.Equal(w.Result().Header["Connection"], []string{"close"}) {
				t.Errorf("%s: %d %s", what, w.Code, w.Body)
			}
		}
	})
}
