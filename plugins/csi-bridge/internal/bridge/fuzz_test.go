package bridge

import (
	"bytes"
	"net"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (bytesCodec) Unmarshal(mem.BufferSlice, any) error { return nil }
func (bytesCodec) Name() string                         { return "proto" }

var _ encoding.CodecV2 = bytesCodec{}

// able is the answer of a driver that says that it can do everything.
func able(f *testing.F, method string) []byte {
	var answer proto.Message
	switch path.Base(method) {
	case "ControllerGetCapabilities":
		resp := &csi.ControllerGetCapabilitiesResponse{}
		for kind := range csi.ControllerServiceCapability_RPC_Type_name {
			resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
				Type: &csi.ControllerServiceCapability_Rpc{
					Rpc: &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_Type(kind)},
				},
			})
		}
		answer = resp
	case "NodeGetCapabilities":
		resp := &csi.NodeGetCapabilitiesResponse{}
		for kind := range csi.NodeServiceCapability_RPC_Type_name {
			resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
				Type: &csi.NodeServiceCapability_Rpc{
					Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_Type(kind)},
				},
			})
		}
		answer = resp
	case "GetPluginCapabilities":
		answer = &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
			Type: &csi.PluginCapability_Service_{
				Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
			},
		}}}
	default:
		return nil
	}
	data, err := proto.Marshal(answer)
	check.NoError(f, err)
	return data
}

// FuzzAnswers has a driver answer each call with any bytes. The bridge returns, with an answer or an error that says
// which call it was, and not the secrets of the call.
func FuzzAnswers(f *testing.F) {
	var answer atomic.Pointer[[]byte]
	capabilities := map[string][]byte{}
	for _, m := range []string{"ControllerGetCapabilities", "NodeGetCapabilities", "GetPluginCapabilities"} {
		capabilities[m] = able(f, m)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(
		func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			if err := stream.RecvMsg(nil); err != nil {
				return err
			}
			if data, ok := capabilities[path.Base(method)]; ok {
				return stream.SendMsg(data)
			}
			data := *answer.Load()
			if code := len(data) % 20; len(data) > 0 && data[0] == 0xff {
				return status.Error(codes.Code(code), string(bytes.ToValidUTF8(data, nil)))
			}
			return stream.SendMsg(data)
		}))
	socket := f.TempDir() + "/s"
	l, err := net.Listen("unix", socket)
	check.NoError(f, err)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	b := newBridge(hclog.NewNullLogger(), brisk)
	f.Cleanup(func() {
		check.NoError(f, b.Close())
		server.Stop()
		check.NoError(f, <-done)
	})
	for _, m := range []proto.Message{
		&csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", AccessibleTopology: []*csi.Topology{{}}}},
		&csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{{}}, NextToken: "n"},
		&csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{Snapshot: &csi.Snapshot{SnapshotId: "s"}}}},
		&csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{}},
		&csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Available: -1, Unit: 7}}},
		&csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"a": "b"}},
		&csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{}},
	} {
		data, err := proto.Marshal(m)
		check.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add([]byte("\xff\x1b[2J\n" + secretValue))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 0 && data[0] == 0xff { // errors that are retried only take time
			switch codes.Code(len(data) % 20) {
			case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.ResourceExhausted,
				codes.Unknown, codes.Canceled:
				data = data[:1]
			}
		}
		answer.Store(&data)
		x := &fixture{
			t: t, bridge: b, driver: storage.Driver{ID: "any", Endpoint: "unix://" + socket}, target: t.TempDir(),
		}
		for _, op := range operations {
			if err := op.call(t.Context(), x); err != nil && !strings.Contains(err.Error(), "any") &&
				!strings.Contains(err.Error(), op.rpc) && !strings.Contains(err.Error(), "driver") {
				t.Errorf("%s: the error does not say of which call: %v", op.rpc, err)
			} else if err != nil && op.rpc != "ListVolumes" && op.rpc != "GetCapacity" && // which have no secrets
				strings.Contains(err.Error(), secretValue) {
				t.Errorf("%s: the error has the secret: %v", op.rpc, err)
			}
		}
	})
}
