package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/consul"
)

// nodePolicy is the policy for registrations, as in docs/consul.md.
const nodePolicy = `
service_prefix "" { policy = "write" }
node_prefix "" { policy = "read" }
agent_prefix "" { policy = "read" }
mesh = "write"
`

// meshed is a workload that has a service with a sidecar.
const meshed = "meshed"

// measureMesh alternates between starting and stopping the workload meshed, and making the same calls to
// Consul without Pannier.
func measureMesh(b *testing.B, r *table.Section) {
	const rounds, warmUp = 150, 10
	ctx := b.Context()
	c := consul.Start(b, consul.Options{ACL: true, TLS: true})
	c.Policy(b, "node", nodePolicy)
	c.Policy(b, "sids", `acl = "write"`)
	nodeToken, aclToken := c.Token(b, "node"), c.Token(b, "sids")
	h := newHostWith(b, consul.Config(c.Service("", c.TokenFile(b, nodeToken)))+
		fmt.Sprintf("plugin \"sids\" {\n  config {\n    token_file = %q\n  }\n}\n", c.TokenFile(b, aclToken)),
		"sids", "consul-services", "envoy-bootstrap")
	h.Start()
	pannier := caller{b, h.Client()}
	bare := &bareMesh{node: c.Client(nodeToken), acl: c.Client(aclToken)}

	var start, stop, least table.Samples
	var steps, alone map[string]table.Samples
	for n := range measure.Turns(warmUp+rounds, 30*time.Second) {
		if n == warmUp {
			start, stop, least, steps, alone = nil, nil, nil, nil, nil
		}
		took, each, err := pannier.startMeshed(ctx)
		if err != nil {
			b.Fatal(err)
		}
		start, steps = append(start, took), gather(steps, each)
		if took, err = pannier.stop(ctx, meshed); err != nil {
			b.Fatal(err)
		}
		stop = append(stop, took)
		if each, err = bare.start(ctx); err == nil {
			err = bare.stop(ctx)
		}
		if err != nil {
			b.Fatal(err)
		}
		alone = gather(alone, each)
		atOnce, err := bare.startAtOnce(ctx)
		if err == nil {
			err = bare.stop(ctx)
		}
		if err != nil {
			b.Fatal(err)
		}
		least = append(least, atOnce)
	}
	r.Add(
		start.Row("start, p50", 0.5).Most(12),
		start.Row("start, p99", 0.99),
		least.Row("Consul's API alone, the same requests as much at once as they can be, p50", 0.5),
		steps["claim"].Row("of that claim, with the token's intent, p50", 0.5),
		steps["register"].Row("of that register, p50", 0.5),
		alone["register"].Row("Consul's API alone: register, p50", 0.5),
		steps["identify"].Row("of that identify, p50", 0.5),
		alone["identify"].Row("Consul's API alone: make a token and read it back, p50", 0.5),
		steps["bootstrap"].Row("of that bootstrap, p50", 0.5),
		alone["bootstrap"].Row("Consul's API alone: read the sidecar, p50", 0.5),
		stop.Row("stop, p50", 0.5),
		stop.Row("stop, p99", 0.99),
	)
}

// gather adds the duration of each step to its samples.
func gather(all map[string]table.Samples, each map[string]time.Duration) map[string]table.Samples {
	if all == nil {
		all = map[string]table.Samples{}
	}
	for name, d := range each {
		all[name] = append(all[name], d)
	}
	return all
}

// startMeshed starts the workload, and returns the time from the call to the answer that it runs, and the
// duration of each step.
func (c caller) startMeshed(ctx context.Context) (took time.Duration, steps map[string]time.Duration, err error) {
	at := time.Now()
	stream, err := c.Workloads.StartWorkload(ctx,
		&hostv1.StartWorkloadRequest{Spec: &hostv1.WorkloadSpec{
			Id: meshed, Services: []*servicev1.Service{{
				Name: "web", Port: "8080", Connect: &servicev1.Connect{SidecarService: &servicev1.SidecarService{}},
			}},
		}})
	if err != nil {
		return 0, nil, err
	}
	var last *hostv1.Workload
	for stream.Receive() {
		if w := stream.Msg().GetWorkload(); w != nil {
			last = w
		}
	}
	took = time.Since(at)
	if err := errors.Join(stream.Err(), stream.Close()); err != nil {
		return 0, nil, fmt.Errorf("start %s: %w", meshed, err)
	}
	if last.GetState() != "running" {
		return 0, nil, fmt.Errorf("start %s: it is %q", meshed, last.GetState())
	}
	steps = map[string]time.Duration{}
	for _, s := range last.GetSteps() {
		steps[s.GetName()] = s.GetTook().AsDuration()
	}
	return took, steps, nil
}

// bareMesh makes the calls to Consul's API that a start needs, without Pannier.
type bareMesh struct {
	node, acl *api.Client
	accessor  string
}

const bareID = "bare-web"

// start returns the durations of the calls, one after the other, by the names of the steps that make the same calls.
func (m *bareMesh) start(ctx context.Context) (map[string]time.Duration, error) {
	began := time.Now()
	if err := m.register(ctx); err != nil {
		return nil, err
	}
	registered := time.Now()
	own, err := m.identify(ctx)
	if err != nil {
		return nil, err
	}
	identified := time.Now()
	err = m.readSidecar(own)
	return map[string]time.Duration{
		"register": registered.Sub(began), "identify": identified.Sub(registered), "bootstrap": time.Since(identified),
	}, err
}

// startAtOnce makes the calls at once that need nothing of each other: the sidecar can be read once it is registered
// and its token is known.
func (m *bareMesh) startAtOnce(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	registered := make(chan error, 1)
	go func() { registered <- m.register(ctx) }()
	own, err := m.identify(ctx)
	if err = errors.Join(err, <-registered); err != nil {
		return 0, err
	}
	err = m.readSidecar(own)
	return time.Since(began), err
}

func (m *bareMesh) register(ctx context.Context) error {
	return m.node.Agent().ServiceRegisterOpts(&api.AgentServiceRegistration{
		ID: bareID, Name: "web", Port: 8080,
		Connect: &api.AgentServiceConnect{SidecarService: &api.AgentServiceRegistration{}},
	}, api.ServiceRegisterOpts{ReplaceExistingChecks: true}.WithContext(ctx))
}

// identify makes a token, and reads it back with itself.
func (m *bareMesh) identify(ctx context.Context) (own *api.QueryOptions, err error) {
	token, _, err := m.acl.ACL().TokenCreate(&api.ACLToken{
		Description: bareID, Local: true, ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: "web"}},
	}, new(api.WriteOptions).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	m.accessor = token.AccessorID
	own = (&api.QueryOptions{Token: token.SecretID, AllowStale: true}).WithContext(ctx)
	_, _, err = m.acl.ACL().TokenReadSelf(own)
	return own, err
}

func (m *bareMesh) readSidecar(own *api.QueryOptions) error {
	_, _, err := m.node.Agent().Service(bareID+"-sidecar-proxy", own)
	return err
}

func (m *bareMesh) stop(ctx context.Context) error {
	if err := m.node.Agent().ServiceDeregisterOpts(bareID, new(api.QueryOptions).WithContext(ctx)); err != nil {
		return err
	}
	_, err := m.acl.ACL().TokenDelete(m.accessor, new(api.WriteOptions).WithContext(ctx))
	return err
}
