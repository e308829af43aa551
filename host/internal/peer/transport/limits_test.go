package transport_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
	"github.com/pannier/pannier/test/lib/testbin"
)

// A user of the unix socket, who keeps as many connections open as there may be, does not keep root out.
func TestManyConnectionsOfOneUser(t *testing.T) {
	testbin.RequireRoot(t, "connections of another user")
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path, log := filepath.Join(dir, "s"), &logged{}
	under, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	l := transport.NewLimits(hclog.New(&hclog.LoggerOptions{Output: log})).Listener(under)
	taken := make(chan net.Conn, 1000)
	go func() {
		defer close(taken)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			taken <- conn
		}
	}()
	const tried, most, nobody = 150, 100, 65534
	opened := make(chan net.Conn, tried)
	go func() { // this thread ends with the goroutine, since it is never unlocked
		runtime.LockOSThread()
		defer close(opened)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), nobody, ^uintptr(0)); errno != 0 {
			t.Error(errno)
			return
		}
		for range tried {
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Error(err)
				return
			}
			opened <- conn
		}
	}()
	refused := 0
	var held []net.Conn
	for conn := range opened {
		held = append(held, conn)
	}
	root, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := root.Write([]byte("root")); err != nil {
		t.Fatal(err)
	}
	served := 0
	for conn := range taken {
		served++
		t.Cleanup(func() { _ = conn.Close() })
		if served == most+1 {
			break
		}
	}
	first := make([]byte, 4)
	for _, conn := range held {
		t.Cleanup(func() { _ = conn.Close() })
	}
	_ = root.Close()
	_ = l.Close()
	if _, more := <-taken; more {
		t.Errorf("more than %d connections of one user are served", most)
	}
	for _, conn := range held {
		if raw, err := conn.(*net.UnixConn).SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				if n, err := unix.Read(int(fd), first); n == 0 && err == nil {
					refused++
				}
			})
		}
	}
	if refused != tried-most {
		t.Errorf("%d of %d connections were closed", refused, tried)
	}
	if !strings.Contains(log.all(), fmt.Sprintf("user %d has %d connections already", nobody, most)) {
		t.Errorf("the log does not say whose:\n%s", log.all())
	}
}

// What is held of calls is given back when they end, however they do: an agent may make any number of large ones.
func TestLargeCallsOneAfterTheOther(t *testing.T) {
	ca := pkitest.New(t)
	server := serve(t, ca.Certs(t, pki.Server, "a"), hclog.NewNullLogger())
	d := dialer(t, ca.Certs(t, pki.Node, "n"))
	conn, err := d.Conn(server.addr, "a", pki.Server)
	if err != nil {
		t.Fatal(err)
	}
	call := func(method string) error {
		return conn.Invoke(t.Context(), method, &healthpb.HealthCheckRequest{Service: strings.Repeat("x", 3<<20)},
			&healthpb.HealthCheckResponse{}, grpc.MaxCallSendMsgSize(8<<20))
	}
	for n := range 15 { // 45 MiB, more than one peer may have in flight
		if err := call(healthpb.Health_Check_FullMethodName); status.Code(err) == codes.Unavailable {
			t.Fatalf("call %d: %v", n, err)
		}
		if err := call("/unheard.of/Call"); status.Code(err) != codes.Unimplemented {
			t.Fatalf("call %d of what is not served: %v", n, err)
		}
	}
	var at sync.WaitGroup
	for range 4 {
		at.Go(func() {
			if err := call(healthpb.Health_Check_FullMethodName); status.Code(err) == codes.Unavailable {
				t.Errorf("at the same time: %v", err)
			}
		})
	}
	at.Wait()
}
