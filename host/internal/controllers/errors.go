package controllers

import "google.golang.org/grpc/status"

// driverError is a gRPC status error that reads as the driver's own words. Its
// code is found by status.FromError through all that is wrapped around it.
type driverError struct{ err error }

func (e driverError) Error() string { return status.Convert(e.err).Message() }

func (e driverError) Unwrap() error { return e.err }

// plain takes gRPC's frame ("rpc error: code = ...") off the text of an error
// that came from the plugin as it is.
func plain(err error) error {
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok { //nolint:errorlint // a wrapped one has text of its own
		return driverError{err}
	}
	return err
}
