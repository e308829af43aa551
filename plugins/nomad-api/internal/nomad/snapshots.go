package nomad

import (
	"context"
	"maps"
	"net/http"

	"connectrpc.com/connect"
	"github.com/hashicorp/nomad/api"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// snapshots is the body of a request that creates some, and of answers.
type snapshots struct {
	Snapshots []api.CSISnapshot
	NextToken string `json:",omitempty"`
}

func snapshotsOf(all []*hostv1.Snapshot, next string) snapshots {
	shown := snapshots{Snapshots: []api.CSISnapshot{}, NextToken: next}
	for _, p := range all {
		shown.Snapshots = append(shown.Snapshots, api.CSISnapshot{
			ID: p.GetSnapshotId(), ExternalSourceVolumeID: p.GetExternalVolumeId(), SizeBytes: p.GetSize(),
			CreateTime: p.GetCreatedAt().GetSeconds(), IsReady: p.GetReady(), SourceVolumeID: p.GetVolume(),
			PluginID: p.GetPluginId(), Name: p.GetName(),
		})
	}
	return shown
}

// createSnapshot takes a snapshot of a registered volume.
func (s *server) createSnapshot(ctx context.Context, q query, r *http.Request) (answer, error) {
	secrets, err := secretsOf(r)
	if err != nil {
		return answer{}, err
	}
	var body snapshots
	if err := read(r, &body); err != nil {
		return answer{}, err
	}
	if len(body.Snapshots) != 1 {
		return answer{}, badRequest("the request has %d Snapshots, and must have one", len(body.Snapshots))
	}
	want := body.Snapshots[0]
	if want.SourceVolumeID == "" {
		return answer{}, badRequest("SourceVolumeID is missing: the volume to take a snapshot of")
	}
	if secrets == nil {
		secrets = map[string]string{}
	}
	maps.Copy(secrets, want.Secrets)
	res, err := s.api.Volumes.CreateSnapshot(ctx, &hostv1.CreateSnapshotRequest{
		Namespace: q.namespace, VolumeId: want.SourceVolumeID, Name: want.Name, Parameters: want.Parameters, Secrets: secrets,
	})
	if err != nil {
		return answer{}, err
	}
	return answer{value: snapshotsOf([]*hostv1.Snapshot{res.GetSnapshot()}, "")}, nil
}

// deleteSnapshot deletes a snapshot at its driver, by the driver's id or by its name in the namespace.
func (s *server) deleteSnapshot(ctx context.Context, q query, r *http.Request) (answer, error) {
	secrets, err := secretsOf(r)
	if err != nil {
		return answer{}, err
	}
	values := r.URL.Query()
	_, err = s.api.Volumes.DeleteSnapshot(ctx, &hostv1.DeleteSnapshotRequest{
		Namespace: q.namespace, PluginId: values.Get("plugin_id"), SnapshotId: values.Get("snapshot_id"), Secrets: secrets,
	})
	return answer{}, err
}

// listSnapshots lists a page of a driver's snapshots or, if it names no driver, all of all drivers.
func (s *server) listSnapshots(ctx context.Context, q query, r *http.Request) (answer, error) {
	secrets, err := secretsOf(r)
	if err != nil {
		return answer{}, err
	}
	plugin := r.URL.Query().Get("plugin_id")
	if plugin == "" && len(secrets) > 0 { // each driver would get those of the others
		return answer{}, badRequest("plugin_id is missing: secrets are for one driver; name it (-plugin)")
	}
	if plugin == "" {
		return s.allSnapshots(ctx)
	}
	res, err := s.api.Volumes.ListSnapshots(ctx, &hostv1.ListSnapshotsRequest{
		PluginId: plugin, PerPage: int32(q.perPage), PageToken: q.nextToken, Secrets: secrets,
	})
	if err != nil {
		return answer{}, err
	}
	return answer{value: snapshotsOf(res.GetSnapshots(), res.GetNextToken())}, nil
}

// allSnapshots lists the snapshots of all drivers that list them.
func (s *server) allSnapshots(ctx context.Context) (answer, error) {
	all, err := s.drivers(ctx, "")
	if err != nil {
		return answer{}, err
	}
	var found []*hostv1.Snapshot
	for _, d := range all {
		req := &hostv1.ListSnapshotsRequest{PluginId: d.GetId()}
		for {
			res, err := s.api.Volumes.ListSnapshots(ctx, req)
			if connect.CodeOf(err) == connect.CodeUnimplemented {
				break // it lists none
			}
			if err != nil {
				return answer{}, err
			}
			found = append(found, res.GetSnapshots()...)
			if req.PageToken = res.GetNextToken(); req.PageToken == "" {
				break
			}
		}
	}
	return answer{value: snapshotsOf(found, "")}, nil
}
