"""Several served models and the night's tenants on one fleet, over days in virtual time."""
