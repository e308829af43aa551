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

const (
	typeCSI  = "csi"
	typeHost = "host"
)

// emptyType answers a list of another type than CSI's: there is nothing of that.
func emptyType(r *http.Request) (answered bool, a answer, err error) {
	switch t := r.URL.Query().Get("type"); t {
	case typeCSI:
		return false, answer{}, nil
	case "", typeHost:
		return true, answer{value: []struct{}{}}, nil
	default:
		return true, answer{}, notFound("resource not found: there is no type %q", t)
	}
}

// listVolumes lists volumes in the order of namespace and id.
func (s *server) listVolumes(ctx context.Context, q query, r *http.Request) (answer, error) {
	if answered, a, err := emptyType(r); answered {
		return a, err
	}
	all, meta, err := s.volumes(ctx, q)
	if err != nil {
		return answer{}, err
	}
	values := r.URL.Query()
	plugin, node := values.Get("plugin_id"), values.Get("node_id")
	all = slices.DeleteFunc(all, func(v *hostv1.Volume) bool {
		spec := v.GetSpec()
		return !strings.HasPrefix(spec.GetId(), q.prefix) || !strings.HasPrefix(spec.GetPluginId(), plugin) ||
			node != "" && !slices.ContainsFunc(v.GetClaims(),
				func(c *hostv1.Claim) bool { return strings.HasPrefix(nodeID(c.GetNode()), node) })
	})
	all, next := page(q, all, volumeKey)
	stubs := make([]*api.CSIVolumeListStub, 0, len(all))
	for _, v := range all {
		stubs = append(stubs, stubOf(v))
	}
	return answer{stubs, meta, next}, nil
}

// volumeKey orders volumes, and is the token of the page that begins with one. No namespace has a slash.
func volumeKey(v *hostv1.Volume) string {
	return v.GetSpec().GetNamespace() + "/" + v.GetSpec().GetId()
}

// volumes returns the volumes of a namespace that the caller may see, in the order of their keys.
func (s *server) volumes(ctx context.Context, q query) (all []*hostv1.Volume, meta *hostv1.ReadMeta, err error) {
	res, err := blocking(ctx, s, q, func(ctx context.Context, read *hostv1.ReadOptions) (*hostv1.ListVolumesResponse,
		error,
	) {
		return s.api.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{Namespace: q.namespace, Read: read})
	})
	all = res.GetVolumes()
	slices.SortFunc(all, func(a, b *hostv1.Volume) int { return cmp.Compare(volumeKey(a), volumeKey(b)) })
	return all, res.GetMeta(), err
}

// readVolume reads one volume.
func (s *server) readVolume(ctx context.Context, q query, r *http.Request) (answer, error) {
	res, err := blocking(ctx, s, q, func(ctx context.Context, read *hostv1.ReadOptions) (*hostv1.GetVolumeResponse,
		error,
	) {
		return s.api.Volumes.GetVolume(ctx,
			&hostv1.GetVolumeRequest{Namespace: q.namespace, Id: r.PathValue("id"), Read: read})
	})
	if err != nil {
		return answer{}, err
	}
	return answer{value: volumeOf(res.GetVolume()), meta: res.GetMeta()}, nil
}

// listExternal lists a page of the volumes at a driver, registered or not.
func (s *server) listExternal(ctx context.Context, q query, r *http.Request) (answer, error) {
	plugin := r.URL.Query().Get("plugin_id")
	if plugin == "" {
		return answer{}, badRequest("plugin_id is missing")
	}
	res, err := s.api.Volumes.ListExternal(ctx, &hostv1.ListExternalRequest{
		PluginId: plugin, PerPage: int32(q.perPage), PageToken: q.nextToken,
	})
	if err != nil {
		return answer{}, err
	}
	shown := api.CSIVolumeListExternalResponse{
		Volumes: []*api.CSIVolumeExternalStub{}, NextToken: res.GetNextToken(),
	}
	for _, v := range res.GetVolumes() {
		shown.Volumes = append(shown.Volumes, &api.CSIVolumeExternalStub{
			ExternalID: v.GetExternalId(), CapacityBytes: v.GetCapacity(), CloneID: v.GetCloneId(),
			SnapshotID: v.GetSnapshotId(), PublishedExternalNodeIDs: v.GetPublishedNodeIds(),
			IsAbnormal: v.GetAbnormal(), Status: v.GetCondition(),
		})
	}
	return answer{value: shown}, nil
}

// isTrue reads a boolean parameter; one that is missing is false.
func isTrue(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, badRequest("Invalid value for %s: %q", name, text)
	}
	return value, nil
}
