package nomad

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// searchRequest is what a shell's completion asks for.
type searchRequest struct {
	Prefix  string
	Context string
}

// searchResponse has the ids that begin with the prefix, by context.
type searchResponse struct {
	Matches     map[string][]string
	Truncations map[string]bool
}

// maxMatches of a context are in an answer.
const maxMatches = 20

// The contexts that have something to find here. All others are searched without a result, as they are known words.
const (
	contextAll        = "all"
	contextVolumes    = "volumes"
	contextPlugins    = "plugins"
	contextNodes      = "nodes"
	contextNamespaces = "namespaces"
	contextAllocs     = "allocs"
)

// search finds ids by their beginning. Of contexts that the caller may not read there is nothing; if it may read none
// it is refused.
func (s *server) search(ctx context.Context, _ http.ResponseWriter, r *http.Request) (answer, error) {
	q, err := readQuery(r)
	if err != nil {
		return answer{}, err
	}
	var want searchRequest
	if err := read(r, &want); err != nil {
		return answer{}, err
	}
	finders := map[string]func(context.Context, query) ([]string, error){
		contextVolumes: s.volumeIDs, contextPlugins: s.pluginIDs, contextNodes: s.nodeIDs,
		contextNamespaces: s.namespaceNames, contextAllocs: s.allocIDs,
	}
	contexts := []string{want.Context}
	if want.Context == contextAll || want.Context == "" {
		contexts = slices.Sorted(maps.Keys(finders))
	}
	found := searchResponse{Matches: map[string][]string{}, Truncations: map[string]bool{}}
	var refusal error
	refused := 0
	for _, name := range contexts {
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
	if refused == len(contexts) {
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
