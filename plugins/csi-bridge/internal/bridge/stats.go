package bridge

import (
	"context"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
)

// VolumeStats implements storage.StatsReader. The condition comes from
// NodeGetVolumeHealth (CSI 1.13) or from the field that older drivers fill in.
func (b *Bridge) VolumeStats(ctx context.Context, d storage.Driver, req storage.StatsRequest) (storage.Stats, error) {
	v := req.Volume
	op := onVolume(driver.VolumeStats, v)
	return nodeDo(ctx, b, d, op, func(ctx context.Context, c *driver.Conn, caps *driver.Node) (storage.Stats, error) {
		if !caps.VolumeStats {
			return storage.Stats{}, lacks("GET_VOLUME_STATS")
		}
		resp, err := c.Node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{
			VolumeId:          v.ExternalID,
			VolumePath:        req.VolumePath,
			StagingTargetPath: req.StagingPath,
		})
		if err != nil {
			return storage.Stats{}, err
		}
		stats := storage.Stats{Usage: usage(resp), Condition: oldCondition(resp, op.Redactor)}
		if caps.VolumeHealth {
			health, err := c.Node.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{
				VolumeId:          v.ExternalID,
				VolumePublishPath: req.VolumePath,
				StagingTargetPath: req.StagingPath,
			})
			if err != nil {
				return storage.Stats{}, err
			}
			stats.Condition = condition(health.GetVolumeHealth(), op.Redactor)
		}
		return stats, nil
	})
}

func usage(resp *csi.NodeGetVolumeStatsResponse) []storage.Usage {
	units := map[csi.VolumeUsage_Unit]storage.Unit{
		csi.VolumeUsage_BYTES:  storage.Bytes,
		csi.VolumeUsage_INODES: storage.Inodes,
	}
	var out []storage.Usage
	for _, u := range resp.GetUsage() {
		if unit, ok := units[u.GetUnit()]; ok {
			out = append(out, storage.Usage{Unit: unit, Available: u.GetAvailable(), Total: u.GetTotal(), Used: u.GetUsed()})
		}
	}
	return out
}

// condition converts a volume's health. Each entry of the health is a problem.
func condition(h *csi.VolumeHealth, hide driver.Redactor) *storage.Condition {
	if h == nil {
		return nil
	}
	var texts []string
	for _, e := range h.GetHealthStatuses() {
		text := e.GetMessage()
		if text == "" {
			text = e.GetReason()
		}
		texts = append(texts, strings.TrimSuffix(e.GetStatus().String()+": "+text, ": "))
	}
	return &storage.Condition{Abnormal: len(texts) > 0, Message: driver.Words(strings.Join(texts, "; "), hide)}
}

// oldCondition reads the VolumeCondition that drivers for versions of the spec before 1.13 put into field 2 of
// NodeGetVolumeStatsResponse and of ListVolumes' VolumeStatus: {bool abnormal = 1; string message = 2}. The spec
// has since reserved the number, so the field arrives as an unknown one. It returns nil if there is none or if it
// cannot be parsed.
func oldCondition(m proto.Message, hide driver.Redactor) *storage.Condition {
	raw := afterTag(m.ProtoReflect().GetUnknown(), 2, protowire.BytesType)
	if raw == nil {
		return nil
	}
	c := &storage.Condition{}
	body, n := protowire.ConsumeBytes(raw)
	if n < 0 {
		return nil
	}
	if v, n := protowire.ConsumeVarint(afterTag(body, 1, protowire.VarintType)); n > 0 {
		c.Abnormal = protowire.DecodeBool(v)
	}
	if s, n := protowire.ConsumeString(afterTag(body, 2, protowire.BytesType)); n > 0 {
		c.Message = driver.Words(s, hide)
	}
	return c
}

// afterTag returns what follows the first tag with that number and type, or nil.
func afterTag(raw []byte, number protowire.Number, wire protowire.Type) []byte {
	for len(raw) > 0 {
		num, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return nil
		}
		raw = raw[n:]
		if num == number && typ == wire {
			return raw
		}
		if n = protowire.ConsumeFieldValue(num, typ, raw); n < 0 {
			return nil
		}
		raw = raw[n:]
	}
	return nil
}
