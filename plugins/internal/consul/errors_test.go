package consul

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
)

func TestErrorOfAnswer(t *testing.T) {
	p := newPool(t)
	for _, c := range []struct {
		status int
		body   string
		code   codes.Code
	}{
		{400, "Bad request: x", codes.InvalidArgument},
		{401, "x", codes.Unauthenticated},
		{403, "Permission denied: token with AccessorID 'a' lacks permission 'acl:write'", codes.PermissionDenied},
		{
			403, "ACL system must be bootstrapped before making any requests that require authorization: ACL not found",
			codes.Unavailable,
		},
		{404, "ACL not found", codes.NotFound},
		{409, "x", codes.Internal},
		{429, "Your IP is issuing too many concurrent connections", codes.ResourceExhausted},
		{500, "No cluster leader", codes.Unavailable},
		{500, "rpc error making call:\n x", codes.Unavailable},
		{503, "rate limit exceeded", codes.Unavailable},
		{500, `discovery chain "a" uses inconsistent protocols; service "b" has "http" which is not "tcp"`, codes.FailedPrecondition},
		{
			500, `discovery chain "a" uses a protocol "tcp" that does not permit advanced routing or splitting behavior`,
			codes.FailedPrecondition,
		},
		{500, `service "a" has protocol "tcp", which is incompatible with L7 intentions permissions`, codes.FailedPrecondition},
		{500, `Service "*" was specified more than once within a namespace`, codes.FailedPrecondition},
		{500, "port 8080 declared on two listeners", codes.FailedPrecondition},
	} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, c.body, c.status) })
		con := service.Consul{Name: "main", Address: s.Listener.Addr().String()}
		wantCode(t, ask(t.Context(), p, con), c.code,
			"ask for the leader on Consul \"main\" ("+con.Address+"): answered "+
				fmt.Sprint(c.status), strings.Join(strings.Fields(c.body), " "))
	}
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, strings.Repeat("ä", maxAnswer), 500) })
	if err := ask(t.Context(), p, service.Consul{Address: s.Listener.Addr().String()}); len(err.Error()) > maxAnswer+200 ||
		strings.Contains(err.Error(), "\ufffd") {
		t.Errorf("%d bytes: %v", len(err.Error()), err)
	}
}

// An ingress listener for a service of another protocol is refused until that has service-defaults: the error has the
// command.
func TestErrorOfProtocol(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `service "web" has protocol "tcp", which does not match defined listener protocol "http"`, 500)
	})
	con := service.Consul{Address: s.Listener.Addr().String()}
	wantCode(t, ask(t.Context(), newPool(t), con), codes.FailedPrecondition,
		`listener protocol "http": `+
			`echo '{"Kind": "service-defaults", "Name": "web", "Protocol": "http"}' | consul config write -`)
}

func TestErrorOfConnection(t *testing.T) {
	p := newPool(t)
	cut := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	half := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `"127.`)
	})
	nonsense := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
	slow := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for address, code := range map[string]codes.Code{
		"127.0.0.1:1":                     codes.Unavailable,
		"unix:///none/consul.sock":        codes.Unavailable,
		"no-such-host.invalid:8500":       codes.Unavailable,
		cut.Listener.Addr().String():      codes.Unavailable,
		half.Listener.Addr().String():     codes.Unavailable,
		nonsense.Listener.Addr().String(): codes.Internal,
	} {
		wantCode(t, ask(t.Context(), p, service.Consul{Name: "c", Address: address}), code, `Consul "c"`)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	c := service.Consul{Address: slow.Listener.Addr().String()}
	wantCode(t, ask(short, p, c), codes.DeadlineExceeded)
	gone, leave := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, leave)
	wantCode(t, ask(gone, p, c), codes.Canceled)
}

func TestErrorKeeps(t *testing.T) {
	c := service.Consul{Name: "c", Address: "a"}
	if err := Error(nil, c, "do"); err != nil {
		t.Error(err)
	}
	err := Error(status.Error(codes.AlreadyExists, "is there"), c, "do %q", "it")
	if got, want := err.Error(),
		`rpc error: code = AlreadyExists desc = do "it" on Consul "c" (a): is there`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	wantCode(t, Error(fmt.Errorf("wrapped: %w", api.StatusError{Code: 404, Body: "x"}), c, "do"), codes.NotFound)
	wantCode(t, Error(errors.New("odd"), c, "do"), codes.Internal, "odd")
}

func TestToken(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		check.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := file("good", "")
	for _, want := range []string{secret, "r0t4t3d"} {
		file("good", " "+want+"\n")
		if got, err := Token(good); got != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if got, err := Token(""); got != "" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	for path, text := range map[string]string{
		file("empty", ""):              "is empty",
		file("blank", " \n"):           "is empty",
		file("two", secret+" "+secret): "more than one word",
		filepath.Join(dir, "none"):     "no such file",
		dir:                            "is a directory",
	} {
		_, err := Token(path)
		wantCode(t, err, codes.FailedPrecondition, path, text)
	}
}
