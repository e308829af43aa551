package nomad

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// maxMatches of a context are in an answer.
const maxMatches = 20

// search finds ids by their beginning, for a shell's completion. Contexts that have nothing to find here are searched
// without a result. Of contexts that the caller may not read there is nothing; if it may read none it is refused.
func (s *server) search(ctx context.Context, q query, r *http.Request) (answer, error) {
	var want struct {
		Prefix  string
		Context contexts.Context
	}
	if err := read(r, &want); err != nil {
		return answer{}, err
	}
	finders := map[contexts.Context]func(context.Context, query) ([]string, error){
		contexts.Volumes: s.volumeIDs, contexts.Plugins: s.pluginIDs, contexts.Nodes: s.nodeIDs,
		contexts.Namespaces: s.namespaceNames, contexts.Allocs: s.allocIDs,
	}
	asked := []contexts.Context{want.Context}
	if want.Context == contexts.All || want.Context == "" {
		asked = slices.Sorted(maps.Keys(finders))
	}
	found := api.SearchResponse{Matches: map[contexts.Context][]string{}, Truncations: map[contexts.Context]bool{}}
	var refusal error
	refused := 0
	for _, name := range asked {
		found.Matches[name], found.Truncations[name] = []string{}, false
		if finders[name] == nil {
			continue
		}
		ids, err := finders[name](ctx, q)
		if denied(err) {
			refusal = err
			refused++
			continue
		}
		if err != nil {
			return answer{}, err
		}
		slices.Sort(ids)
		ids = slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return !strings.HasPrefix(id, want.Prefix) })
		found.Truncations[name] = len(ids) > maxMatches
		found.Matches[name] = append(found.Matches[name], ids[:min(len(ids), maxMatches)]...)
	}
	if refused == len(asked) {
		return answer{}, refusal
	}
	return answer{value: found}, nil
}

func (s *server) volumeIDs(ctx context.Context, q query) (ids []string, err error) {
	all, _, err := s.volumes(ctx, query{namespace: q.namespace})
	for _, v := range all {
		ids = append(ids, v.GetSpec().GetId())
	}
	return ids, err
}

func (s *server) allocIDs(ctx context.Context, q query) (ids []string, err error) {
	all, _, err := s.volumes(ctx, query{namespace: q.namespace})
	for _, v := range all {
		for _, c := range v.GetClaims() {
			ids = append(ids, allocID(c))
		}
	}
	return ids, err
}

func (s *server) pluginIDs(ctx context.Context, _ query) (ids []string, err error) {
	all, err := s.drivers(ctx, "")
	for _, d := range all {
		ids = append(ids, d.GetId())
	}
	return ids, err
}

func (s *server) nodeIDs(ctx context.Context, _ query) (ids []string, err error) {
	res, err := s.api.Nodes.ListNodes(ctx, &hostv1.ListNodesRequest{})
	if err != nil {
		return nil, err
	}
	for _, n := range res.GetNodes() {
		ids = append(ids, nodeID(n.GetName()))
	}
	return ids, nil
}
