package services

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/consul"
)

// Whatever Consul answers, a call succeeds or fails with an error that names the Consul, and what another owner has
// marked is not reported as changed.
func FuzzAnswers(f *testing.F) {
	const found = `{"ID":"pannier:n1:default:w:web","Service":"web","Tags":["a"],"Meta":{"k":"v"},"Port":8080,` +
		`"Proxy":{"Upstreams":[null],"Expose":{"Paths":[null]}},"Connect":{"SidecarService":null}}`
	const entry = `{"Kind":"service-intentions","Name":"web","Sources":[null,{"Name":"api","Action":"allow"}],"Meta":null}`
	for _, text := range []string{
		"{}", "null", "[]", "[null]", `{"x":null}`, `{"x":` + found + `}`, found, entry, "[" + entry + ",null]", "404 x",
		"404 x\n" + entry, "403 ACL not found", "500 x", "true", `{"x":` + found + `}` + "\n" + entry + "\n[]\ntrue",
		`{"CheckID":"x","Node":"n","Status":"passing"}`, `{"Kind":"ingress-gateway","Name":"web","Listeners":[{"Services":[{}]}]}`,
	} {
		f.Add([]byte(text))
	}
	answers := consul.NewAnswers(f)
	s := New()
	f.Cleanup(func() { _ = s.Close() })
	web := instance("web", func(s *service.Service) {
		s.Connect = &service.Connect{SidecarService: &service.SidecarService{}}
		s.Checks = []service.Check{{Name: "up", Type: "process"}}
		s.Intentions = []string{"api"}
	})
	edge := instance("edge", func(s *service.Service) {
		s.Connect = &service.Connect{Gateway: &service.Gateway{Ingress: &service.Ingress{}}}
	})
	f.Fuzz(func(t *testing.T, text []byte) {
		var ctx context.Context
		for what, do := range map[string]func() error{
			"register":         func() error { _, err := s.Register(ctx, answers.Service, web); return err },
			"register gateway": func() error { _, err := s.Register(ctx, answers.Service, edge); return err },
			"deregister":       func() error { return s.Deregister(ctx, answers.Service, owner, web.ID) },
			"intend":           func() error { return s.SetIntentions(ctx, answers.Service, web) },
			"beat": func() error {
				return s.Heartbeat(ctx, answers.Service, []registration.Beat{{ID: web.ID, Healthy: true}})
			},
			"sync": func() error {
				_, _, err := s.Sync(ctx, answers.Service, registration.SyncRequest{
					Owner: owner, Instances: []registration.Instance{web, edge},
				})
				return err
			},
		} {
			answers.Give(text)
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond) // it asks again while another host is faster
			err := do()
			cancel()
			if _, is := status.FromError(err); !is || err != nil && !strings.Contains(err.Error(), "Consul") {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
