"""Tools run by hand that judge the tests, the campaign of random programs and the compiler."""
