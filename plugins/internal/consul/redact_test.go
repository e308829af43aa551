package consul

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/service"
)

// An error of a server that quotes the request contains no secret.
func TestErrorsThatRepeatTheRequest(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, "refused: %s %v %s", r.URL, r.Header, body)
	}))
	defer srv.Close()
	pool := NewPool()
	defer pool.Close()
	c := service.Consul{Name: "default", Address: srv.URL}
	client, err := pool.Client(c, "t0k3n")
	if err != nil {
		t.Fatal(err)
	}
	_, _, login := client.ACL().Login(&api.ACLLoginParams{
		AuthMethod: "m", BearerToken: "jw7",
		Meta: map[string]string{"why": "open"},
	}, nil)
	register := client.Agent().ServiceRegister(&api.AgentServiceRegistration{Name: "web", Checks: api.AgentServiceChecks{
		{Name: "page", HTTP: "http://h/", Header: map[string][]string{"Authorization": {"b4s1c"}}},
	}})
	for name, tc := range map[string]struct {
		err  error
		says string
	}{"login": {login, "open"}, "register": {register, "page"}} {
		said := Error(tc.err, c, "%s", name).Error()
		if !strings.Contains(said, tc.says) || !strings.Contains(said, "X-Consul-Token:[[REDACTED]]") {
			t.Errorf("%s: got %s", name, said)
		}
		for _, secret := range []string{"t0k3n", "jw7", "b4s1c"} {
			if strings.Contains(said, secret) {
				t.Errorf("%s: %q is in %s", name, secret, said)
			}
		}
	}
}

// An answer that does not end is given up.
func TestAnswerWithoutEnd(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for part, err := []byte(strings.Repeat(" ", 1<<20)), error(nil); err == nil; {
			_, err = w.Write(part)
		}
	}))
	defer srv.Close()
	pool := NewPool()
	defer pool.Close()
	c := service.Consul{Name: "default", Address: srv.URL}
	client, err := pool.Client(c, "")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = client.ACL().TokenList(nil)
	if err = Error(err, c, "list"); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), `Consul "default"`) || !strings.Contains(err.Error(), "more than 67108864 bytes") {
		t.Errorf("got %v", err)
	}
}
