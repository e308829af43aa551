package storage

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// arguments are the driver and the other arguments of a call.
type arguments struct {
	Driver Driver
	Args   []any
}

// recorder is an implementation that records its arguments and returns prepared answers.
type recorder struct {
	got    arguments
	answer any
	err    error
}

func (r *recorder) note(d Driver, args ...any) { r.got = arguments{Driver: d, Args: args} }

func answer[T any](r *recorder) (T, error) {
	v, _ := r.answer.(T)
	return v, r.err
}

func (r *recorder) Fingerprint(ctx context.Context, d Driver, opts FingerprintOptions,
	report func(Fingerprint) error,
) error {
	r.note(d, opts)
	if r.err != nil {
		return r.err
	}
	list, _ := r.answer.([]Fingerprint)
	for _, f := range list {
		if err := report(f); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

func (r *recorder) Drivers(context.Context) ([]Driver, error) {
	r.note(Driver{})
	return answer[[]Driver](r)
}

func (r *recorder) ValidateVolume(_ context.Context, d Driver, req ValidateRequest) ([]string, error) {
	r.note(d, req)
	return answer[[]string](r)
}

func (r *recorder) Attach(_ context.Context, d Driver, req AttachRequest) (map[string]string, error) {
	r.note(d, req)
	return answer[map[string]string](r)
}

func (r *recorder) Detach(_ context.Context, d Driver, v Volume, nodeID string) error {
	r.note(d, v, nodeID)
	return r.err
}

func (r *recorder) Stage(_ context.Context, d Driver, req StageRequest) error {
	r.note(d, req)
	return r.err
}

func (r *recorder) Unstage(_ context.Context, d Driver, v Volume, path string) error {
	r.note(d, v, path)
	return r.err
}

func (r *recorder) Publish(_ context.Context, d Driver, req PublishRequest) error {
	r.note(d, req)
	return r.err
}

func (r *recorder) Unpublish(_ context.Context, d Driver, v Volume, path string) error {
	r.note(d, v, path)
	return r.err
}

func (r *recorder) Create(_ context.Context, d Driver, req CreateRequest) (CreateResponse, error) {
	r.note(d, req)
	return answer[CreateResponse](r)
}

func (r *recorder) Delete(_ context.Context, d Driver, v Volume) error {
	r.note(d, v)
	return r.err
}

func (r *recorder) List(_ context.Context, d Driver, page Page) (ListResponse, error) {
	r.note(d, page)
	return answer[ListResponse](r)
}

func (r *recorder) Get(_ context.Context, d Driver, v Volume) (ListedVolume, error) {
	r.note(d, v)
	return answer[ListedVolume](r)
}

func (r *recorder) Modify(_ context.Context, d Driver, req ModifyRequest) error {
	r.note(d, req)
	return r.err
}

func (r *recorder) Capacity(_ context.Context, d Driver, req CapacityRequest) (Capacity, error) {
	r.note(d, req)
	return answer[Capacity](r)
}

func (r *recorder) Expand(_ context.Context, d Driver, req ExpandRequest) (ExpandResponse, error) {
	r.note(d, req)
	return answer[ExpandResponse](r)
}

func (r *recorder) ExpandNode(_ context.Context, d Driver, req ExpandNodeRequest) (int64, error) {
	r.note(d, req)
	return answer[int64](r)
}

func (r *recorder) CreateSnapshot(_ context.Context, d Driver, req CreateSnapshotRequest) (Snapshot, error) {
	r.note(d, req)
	return answer[Snapshot](r)
}

func (r *recorder) DeleteSnapshot(_ context.Context, d Driver, id string, secrets map[string]string) error {
	r.note(d, id, secrets)
	return r.err
}

func (r *recorder) ListSnapshots(_ context.Context, d Driver, req ListSnapshotsRequest) (ListSnapshotsResponse, error) {
	r.note(d, req)
	return answer[ListSnapshotsResponse](r)
}

func (r *recorder) CreateGroupSnapshot(_ context.Context, d Driver, req CreateGroupSnapshotRequest) (GroupSnapshot,
	error,
) {
	r.note(d, req)
	return answer[GroupSnapshot](r)
}

func (r *recorder) DeleteGroupSnapshot(_ context.Context, d Driver, req GroupSnapshotRequest) error {
	r.note(d, req)
	return r.err
}

func (r *recorder) GetGroupSnapshot(_ context.Context, d Driver, req GroupSnapshotRequest) (GroupSnapshot, error) {
	r.note(d, req)
	return answer[GroupSnapshot](r)
}

func (r *recorder) VolumeStats(_ context.Context, d Driver, req StatsRequest) (Stats, error) {
	r.note(d, req)
	return answer[Stats](r)
}

// dial serves impl and returns a client of it; opts are for the client.
func dial(t *testing.T, impl Storage, opts ...grpc.DialOption) Client {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	srv := grpc.NewServer()
	Plugin(impl).Register(srv)
	served := make(chan struct{})
	go func() {
		defer close(served)
		srv.Serve(listener)
	}()
	conn, err := grpc.NewClient("passthrough:plugin", append(opts,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		srv.Stop()
		<-served
	})
	return NewClient(conn)
}
