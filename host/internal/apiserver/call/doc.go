// Package call is what the API's handlers share: who makes a call and what they may do, reading the ledger for a query,
// logs, errors with their codes, and the API's types.
package call
