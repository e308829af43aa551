package volumesteps

import "context"

// Attach makes the volume available on this node. Its first user here calls the driver's
// controller; the others take the publish context of that call.
func (s *Steps) Attach(ctx context.Context, v *Volume) error {
	unlock, err := s.Locks.lock(ctx, v.Ref)
	if err != nil {
		return err
	}
	defer unlock()
	u, err := s.join(attachments, attachmentKey(v.Ref), v)
	if err != nil {
		return err
	}
	if !u.Done {
		info := v.info
		info.MountOptions = v.Options // with those of the request
		if u.PublishContext, err = s.Controller.Attach(ctx, info, v.Usage.Modes(), s.Node); err != nil {
			return err
		}
		u.Done = true
		if err := s.saveUsers(attachments, attachmentKey(v.Ref), u); err != nil {
			return err
		}
	}
	v.set.Update(func() { v.PublishContext = u.PublishContext })
	return nil
}

// LeaveAttachment ends this use. The leader decides whether the controller is asked to detach,
// from the claims that exist when this one is released.
func (s *Steps) LeaveAttachment(ctx context.Context, v *Volume) error {
	unlock, err := s.Locks.lock(ctx, v.Ref)
	if err != nil {
		return err
	}
	defer unlock()
	return s.leave(attachments, attachmentKey(v.Ref), v)
}
