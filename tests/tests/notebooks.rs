//! Tables, views and `%memscope` of the Python package.
