package nomad

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// readSelf describes this host's agent, with the little of it that clients use.
func (s *server) readSelf(ctx context.Context, _ query, _ *http.Request) (answer, error) {
	m, err := s.api.Agent.Status(ctx, &hostv1.StatusRequest{})
	if err != nil {
		return answer{}, err
	}
	region := s.config().Region
	return answer{value: api.AgentSelf{
		Config: map[string]any{
			"Region": region, "Datacenter": m.GetDatacenter(), "NodeName": m.GetName(),
			"Version": map[string]string{"Version": m.GetVersion()},
		},
		Member: api.AgentMember{
			Name: m.GetName() + "." + region, Status: "alive",
			Tags: map[string]string{"role": "pannier", "region": region, "dc": m.GetDatacenter(), "build": m.GetVersion()},
		},
		Stats: map[string]map[string]string{"pannier": {
			"leader": strconv.FormatBool(m.GetLeader()), "raft_index": strconv.FormatUint(m.GetRaftIndex(), 10),
			"volumes": strconv.FormatInt(m.GetVolumes(), 10), "claims": strconv.FormatInt(m.GetClaims(), 10),
		}},
	}}, nil
}

// readLeader returns the address of the server that leads. A host that is alone leads, and has no address but the one
// that the client has reached.
func (s *server) readLeader(ctx context.Context, _ query, r *http.Request) (answer, error) {
	res, err := s.api.Members.ListMembers(ctx, &hostv1.ListMembersRequest{})
	if err != nil {
		return answer{}, err
	}
	for _, m := range res.GetMembers() {
		if m.GetLeader() {
			return answer{value: cmp.Or(m.GetRpcAddress(), m.GetAddress(), r.Host)}, nil
		}
	}
	return answer{}, &statusError{code: http.StatusInternalServerError, text: "No cluster leader"}
}

// listRegions lists the one region.
func (s *server) listRegions(context.Context, query, *http.Request) (answer, error) {
	return answer{value: []string{s.config().Region}}, nil
}

// listNamespaces lists the namespaces with volumes that the caller may see, and the default one. A namespace needs no
// definition: it is there with the first volume in it.
func (s *server) listNamespaces(ctx context.Context, q query, _ *http.Request) (answer, error) {
	names, err := s.namespaceNames(ctx, q)
	if err != nil {
		return answer{}, err
	}
	shown := []api.Namespace{}
	for _, name := range names {
		if strings.HasPrefix(name, q.prefix) {
			shown = append(shown, api.Namespace{Name: name})
		}
	}
	return answer{value: shown}, nil
}

// readNamespace reads one namespace.
func (s *server) readNamespace(ctx context.Context, q query, r *http.Request) (answer, error) {
	names, err := s.namespaceNames(ctx, query{})
	if err != nil {
		return answer{}, err
	}
	name := r.PathValue("name")
	if !slices.Contains(names, name) {
		return answer{}, notFound("namespace %q has no volumes that you may see", name)
	}
	return answer{value: api.Namespace{Name: name}}, nil
}

func (s *server) namespaceNames(ctx context.Context, _ query) ([]string, error) {
	all, _, err := s.volumes(ctx, query{namespace: allNamespaces})
	if err != nil {
		return nil, err
	}
	names := []string{defaultNamespace}
	for _, v := range all {
		names = append(names, v.GetSpec().GetNamespace())
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
